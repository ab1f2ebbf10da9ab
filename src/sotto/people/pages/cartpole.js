// CartPole-v1 of Gymnasium: the same constants, Euler steps, ends and rewards.
import { uniform } from "./policy.js";

const GRAVITY = 9.8;
const CART_MASS = 1.0;
const POLE_MASS = 0.1;
const TOTAL_MASS = POLE_MASS + CART_MASS;
const HALF_LENGTH = 0.5;
const POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH;
const FORCE = 10.0;
export const STEP_SECONDS = 0.02;
export const FARTHEST_ANGLE = (12 * 2 * Math.PI) / 360;
export const FARTHEST_POSITION = 2.4;
export const MOST_STEPS = 500;

/** A cart with a pole; its state is [position, velocity, angle, angular velocity]. */
export class CartPole {
  /** Starts an episode; Gymnasium draws the four numbers uniformly from [-0.05, 0.05). */
  constructor(state = Array.from({ length: 4 }, () => 0.1 * uniform() - 0.05)) {
    this.state = state;
    this.steps = 0;
    this.terminated = false;
  }

  /** The state in single precision, as Gymnasium gives it. */
  get observation() {
    return this.state.map(Math.fround);
  }

  /** Whether the episode is over. */
  get over() {
    return this.terminated || this.steps === MOST_STEPS;
  }

  /** Pushes the cart to the left (0) or to the right (1); gives the reward. */
  step(action) {
    if (action !== 0 && action !== 1) throw new Error(`CartPole has no action ${action}.`);
    if (this.over) throw new Error("This episode is over; start another one.");
    const [position, velocity, angle, spin] = this.state;
    const force = action === 1 ? FORCE : -FORCE;
    const cosine = Math.cos(angle);
    const sine = Math.sin(angle);
    const push = (force + POLE_MASS_LENGTH * spin ** 2 * sine) / TOTAL_MASS;
    const spinChange = (GRAVITY * sine - cosine * push) /
      (HALF_LENGTH * (4.0 / 3.0 - (POLE_MASS * cosine ** 2) / TOTAL_MASS));
    const velocityChange = push - (POLE_MASS_LENGTH * spinChange * cosine) / TOTAL_MASS;
    this.state = [
      position + STEP_SECONDS * velocity,
      velocity + STEP_SECONDS * velocityChange,
      angle + STEP_SECONDS * spin,
      spin + STEP_SECONDS * spinChange,
    ];
    this.steps += 1;
    this.terminated = Math.abs(this.state[0]) > FARTHEST_POSITION ||
      Math.abs(this.state[2]) > FARTHEST_ANGLE;
    return 1.0;
  }
}
