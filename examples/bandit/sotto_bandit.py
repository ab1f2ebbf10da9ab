"""A private contextual bandit: learns which of three offers suits whom, from each person's reward."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import sotto

FEATURES, OFFERS = 4, 3


@dataclass(frozen=True)
class BanditConfig:
    """Settings of the bandit."""

    people_per_update: int = 500
    """People whose updates are summed in one release."""
    num_updates: int = 100
    """Releases of the whole training."""
    exploration: float = 0.3
    """Probability that a person gets an offer at random."""
    target_epsilon: float = 1.0
    """Epsilon that the certificate must not exceed."""
    delta: float = 1e-6
    """Delta of the guarantee, below one over the number of people."""
    seed: int = 0
    """Seed of simulated people; noise never comes from it."""


def meet(policy, key):
    """One simulated person: their features, the offer that they get, and their reward."""
    features_key, offer_key = jax.random.split(key)
    features = jax.random.uniform(features_key, (FEATURES,), minval=-1.0)
    offer = policy(features).sample(policy.noise(offer_key, ()))
    return features, offer, jnp.where(offer == 0, features[0], features[offer] - features[3])


class Bandit(sotto.PrivateAlgorithm[BanditConfig]):
    """Trains a private contextual bandit: a linear model of the reward of each offer."""

    name, summary, config_type = "bandit", "a private contextual bandit", BanditConfig

    def release(self, config):
        z = sotto.calibrate(target_epsilon=config.target_epsilon, delta=config.delta)

        def local(values, _person, key):  # one person, seen alone: the gradient of their error
            features, offer, reward = meet(sotto.EpsilonGreedy(values, config.exploration), key)
            error = jax.grad(lambda v: 0.5 * (v(features)[offer] - reward) ** 2)(values)
            return {"gradient": error}, {"reward": reward}

        def server(values, released):  # post-processing
            return jax.tree.map(lambda v, g: v - 0.5 * g, values, released["gradient"]), ()

        people, unit = config.people_per_update, sotto.Unit(kind="trajectory")
        parts = {"gradient": sotto.Part(clip_norm=1.0, noise_multiplier=z)}
        return sotto.Release("bandit update", local, server, unit, parts, slots=people,
                             divisor=people, horizon=config.num_updates, population="simulated")  # fmt: skip

    def initial_state(self, config, key):
        return sotto.MLP(FEATURES, OFFERS, (), key, last_gain=0.01)

    def policies(self, states):
        return {"last": sotto.EpsilonGreedy(states, jnp.zeros(len(states.biases[0])))}

    def evaluate(self, config, policy, key, episodes, greedy):
        keys = jax.random.split(key, episodes)
        return jax.vmap(lambda p: jax.vmap(lambda k: meet(p, k)[2])(keys))(policy)
