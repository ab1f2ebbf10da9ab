// A policy in the browser: the forward pass of a tanh network, and draws of its actions.

/** A uniform number in [0, 1) with 53 random bits of the browser's cryptographic generator. */
export function uniform() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return ((high >>> 5) * 2 ** 26 + (low >>> 6)) / 2 ** 53;
}

/** A number with the standard normal distribution, by the method of Box and Muller. */
export function normal() {
  return Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** A network and the distribution of actions that it gives. */
export class Policy {
  /** @param policy the JSON of v1/policy; other networks and distributions are refused */
  constructor(policy) {
    const { activation, distribution } = policy;
    if (activation !== "tanh" || !["softmax", "gaussian"].includes(distribution)) {
      throw new Error(`This page plays tanh networks with a softmax or gaussian, and this policy ` +
        `is ${activation} with ${distribution}; use another client.`);
    }
    this.gaussian = distribution === "gaussian" ? {
      scale: policy.action_scale,
      centre: policy.action_centre,
      std: policy.log_std.map((value, i) => policy.action_scale[i] * Math.exp(value)),
    } : null;
    this.version = policy.version;
    this.layers = policy.layers;
    this.scale = policy.observation_scale;  // one number, or one for each observation
    this.centre = policy.observation_centre;
    this.inputs = policy.layers[0].weights.length;
    this.actions = policy.layers.at(-1).bias.length;
  }

  /** The outputs of the last layer at an observation; one of another length is refused. */
  outputs(observation) {
    if (observation.length !== this.inputs) {
      throw new Error(`An observation must have ${this.inputs} numbers, got ` +
        `${observation.length}.`);
    }
    let values = observation.map((value, i) =>
      (value - (this.centre?.[i] ?? 0)) * (Array.isArray(this.scale) ? this.scale[i] : this.scale));
    this.layers.forEach((layer, depth) => {
      const sums = layer.bias.map((bias, j) =>
        values.reduce((sum, value, i) => sum + value * layer.weights[i][j], bias));
      values = depth < this.layers.length - 1 ? sums.map(Math.tanh) : sums;
    });
    return values;
  }

  /** The probability of each action at an observation. */
  probabilities(observation) {
    const values = this.outputs(observation);
    const largest = Math.max(...values);
    const weights = values.map((value) => Math.exp(value - largest));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return weights.map((weight) => weight / total);
  }

  /** Draws an action at an observation: a number of it, or real numbers. */
  draw(observation) {
    if (this.gaussian !== null) {
      const { scale, centre, std } = this.gaussian;
      return this.outputs(observation).map((value, i) =>
        centre[i] + scale[i] * value + std[i] * normal());
    }
    const probabilities = this.probabilities(observation);
    let left = uniform();
    for (let action = 0; action < probabilities.length - 1; action += 1) {
      left -= probabilities[action];
      if (left < 0) return action;
    }
    return probabilities.length - 1;
  }
}
