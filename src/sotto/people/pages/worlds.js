// The worlds of the game. The spaces of a campaign say which one its people live in.
import { CartPole, STEP_SECONDS } from "./cartpole.js";
import { Dosing } from "./dosing.js";
import { drawCart, drawDay } from "./picture.js";

const CART_POLE = {
  fits: ({ observations, actions }) => observations === 4 && actions === 2,
  start: () => new CartPole(),
  draw: (canvas, cart) => drawCart(canvas, cart.state),
  stepSeconds: STEP_SECONDS,
  picture: "A cart with a pole on a track",
  task: "The policy balances a pole on a cart.",
  states: "the cart's states",
  ended: "the pole fell",
};

const DOSING = {
  fits: ({ observations, actions }) => observations === 9 && actions.low?.join() === "0" &&
    actions.high?.join() === "10",
  start: () => new Dosing(),
  draw: (canvas, day) => drawDay(canvas, day.glucose),
  stepSeconds: 0.04,
  picture: "The blood glucose of a simulated person over a day, and the band it should be in",
  task: "The policy chooses insulin for a simulated person, every ten minutes of a day.",
  states: "the simulated person's states",
  ended: "the day ended early",
};

/** The world of a campaign with these spaces; undefined if this page does not have it. */
export function worldOf(spaces) {
  return [CART_POLE, DOSING].find((world) => world.fits(spaces));
}
