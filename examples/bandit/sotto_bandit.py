"""A private contextual bandit: learns from people's rewards which of three offers suits whom."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import sotto

FEATURES, OFFERS = 4, 3


@dataclass(frozen=True)
class BanditConfig:
    """Settings of the bandit; each is a flag of `sotto train offers`."""
    people_per_update: int = 500
    num_updates: int = 100
    exploration: float = 0.3
    target_epsilon: float = 1.0
    delta: float = 1e-6
    seed: int = 0


def meet(policy, key):
    """One simulated person: their features, the offer that they get, and their reward."""
    features_key, offer_key = jax.random.split(key)
    features = jax.random.uniform(features_key, (FEATURES,), minval=-1.0)
    offer = policy(features).sample(policy.noise(offer_key, ()))
    return features, offer, jnp.where(offer == 0, features[0], features[offer] - features[3])


class Bandit(sotto.PrivateAlgorithm[BanditConfig]):
    """Trains a private contextual bandit: a linear model of the reward of each offer."""

    name, summary, config_type = "offers", "a private contextual bandit", BanditConfig

    def release(self, config):
        def local(values, _, key):  # one person, seen alone: the gradient of the model's error
            features, offer, reward = meet(sotto.EpsilonGreedy(values, config.exploration), key)
            gradient = jax.grad(lambda v: (v(features)[offer] - reward) ** 2 / 2)(values)
            return {"gradient": gradient}, {"reward": reward}

        def server(values, released):  # post-processing: a step against the noisy mean gradient
            return jax.tree.map(lambda v, g: v - g / 2, values, released["gradient"]), ()

        z = sotto.calibrate(target_epsilon=config.target_epsilon, delta=config.delta)
        parts = {"gradient": sotto.Part(clip_norm=1.0, noise_multiplier=z)}
        people = config.people_per_update
        unit = sotto.Unit(kind="trajectory", adjacency="zero-out")
        return sotto.Release("bandit update", local, server, unit, parts, slots=people,
                             divisor=people, horizon=config.num_updates, population="simulated")

    def initial_state(self, config, key):
        return sotto.MLP(FEATURES, OFFERS, (), key, last_gain=0.01)

    def policies(self, states):
        return {"last": sotto.EpsilonGreedy(states, jnp.zeros(len(states.biases[0])))}

    def evaluate(self, config, policy, key, episodes, greedy):
        keys = jax.random.split(key, episodes)
        return jax.vmap(lambda p: jax.vmap(lambda k: meet(p, k)[2])(keys))(policy)
