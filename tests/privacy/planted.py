"""Every leak of the catalogue as a user could write it, and the same code without the leak.

`PLANTED[name](leaky)` is the `sotto.Auditable`. Clip norms are 1, and outputs are on a grid.
"""

import functools
from collections.abc import Callable

import numpy as np

import sotto
from sotto.privacy.accounting.composition import SampledGaussian, compose
from sotto.privacy.accounting.gaussian import epsilon_of_shift

Z, DELTA, GRID = 5.0, 0.05, 2.0**-10
PLANTED: dict[str, Callable[[bool], sotto.Auditable]] = {}


def plant(name):
    def named(make):
        PLANTED[name] = make
        return make

    return named


def claim(train, people, shift=1 / Z):
    return sotto.Auditable(train, np.asarray(people, float), epsilon_of_shift(shift, DELTA), DELTA)


def noisy(rng, values, z=Z):
    return np.rint((values + rng.normal(0, z, np.shape(values))) / GRID) * GRID


def of_sums(people, contribution, z=Z, shift=1 / Z):
    def train(people, present, seed):
        return noisy(np.random.default_rng(seed), contribution(people, present), z)

    return claim(train, people, shift)


# --- a statistic beside the updates --------------------------------------------------------------

CROWD, RELEASES = 8, 3


def learner(people, leaky, *, state, update, statistic, step, logged=False):
    """A training whose public state follows a statistic of all people, with noise or without."""

    def train(people, present, seed):
        rng, seen = np.random.default_rng(seed), []
        now = np.full(len(present), float(state))
        for batch in np.split(np.arange(CROWD * RELEASES), RELEASES):
            here, data = present[:, batch], people[batch]
            updates = np.clip(update(now[:, None], data), -1, 1) * here
            seen.append(noisy(rng, updates.sum(axis=1), Z * 2**0.5))
            seen_of_all = statistic(now[:, None], data)
            if leaky:
                total = (seen_of_all * here).sum(axis=1)
            else:
                total = noisy(rng, (np.clip(seen_of_all, -1, 1) * here).sum(axis=1), Z * 2**0.5)
            now = step(now, total / CROWD)
            if logged:
                seen.append(now)
        return np.stack(seen, axis=1)

    return claim(train, people)


def crowd(first, others):
    return np.array([first, *[others] * (CROWD * RELEASES - 1)])


@plant("non-private-critic")
def critic(leaky):
    return learner(
        crowd(2.0, 0.51),
        leaky,
        state=0.5,
        update=lambda value, gain: 1000 * (gain - value),
        statistic=lambda value, gain: gain - value,
        step=lambda value, mean: value + mean,
    )


@plant("observation-normaliser")
def normaliser(leaky):
    return learner(
        crowd(1000.0, 1.0),
        leaky,
        state=1.0,
        update=lambda scale, seen: seen / scale,
        statistic=lambda scale, seen: seen,
        step=lambda scale, mean: np.maximum(0.9 * scale + 0.1 * mean, 0.5),
    )


@plant("shared-value-head")
def value_head(leaky):
    return learner(
        crowd(1.0, 0.5),
        leaky,
        state=0.49,
        update=lambda value, score: 1000 * (score - value),
        statistic=lambda value, score: score - value,
        step=lambda value, mean: value + 0.5 * mean,
    )


@plant("adaptive-kl-coefficient")
def kl_coefficient(leaky):
    return learner(
        crowd(2.0, 0.3),
        leaky,
        state=0.1,
        update=lambda coefficient, divergence: 0.5 - coefficient * divergence,
        statistic=lambda coefficient, divergence: divergence / 0.3 - 1,
        step=lambda coefficient, mean: coefficient * (1 + 0.1 * np.clip(mean, -0.2, 0.2)),
        logged=True,
    )


@plant("reward-normaliser")
def reward_normaliser(leaky):
    return learner(
        crowd(100.0, 0.5),
        leaky,
        state=1.0,
        update=lambda variance, reward: 100 * (reward / np.sqrt(variance) - 0.3),
        statistic=lambda variance, reward: reward**2 - variance,
        step=lambda variance, mean: np.maximum(variance + 0.2 * mean, 0.1),
    )


@plant("early-stopping-on-rewards")
def early_stopping(leaky):
    return learner(
        crowd(1.0, 0.5),
        leaky,
        state=1.0,
        update=lambda goes_on, reward: goes_on * reward,
        statistic=lambda goes_on, reward: reward - 0.55 + 0 * goes_on,
        step=lambda goes_on, mean: goes_on * (mean < 0),
        logged=True,  # the length of the run shows it
    )


# --- statistics of a batch -----------------------------------------------------------------------


@plant("advantage-normalisation")
def advantages(leaky):
    def updates(returns, present):
        middle, scale = 0.5, 0.01
        if leaky:
            count = present.sum(axis=1)
            middle = ((returns * present).sum(axis=1) / count)[:, None]
            scale = np.sqrt(((returns - middle) ** 2 * present).sum(axis=1) / count)[:, None]
        return (np.clip(100 * (returns - middle) / scale, -1, 1) * present).sum(axis=1)

    return of_sums([1.0, *[0.501] * 6, 0.494], updates)


@plant("best-of-n-across-people")
def best_of_n(leaky):
    """Everybody rates as many completions as there are people, and those of one are alike."""

    def updates(ratings, present):
        side = np.where(np.arange(len(ratings)) == 0, 1.0, -1.0)
        if not leaky:
            return (side * present).sum(axis=1)  # each learns from an own best completion
        best = np.where(present, ratings.max(axis=1), -np.inf).argmax(axis=1)
        return len(ratings) * side[best]

    return of_sums(np.linspace(1.0, 0.1, 8)[:, None] * np.ones(8), updates)


@plant("uncentred-clipping-bit")
def bit(leaky):
    half = 0.5 * (not leaky)
    return of_sums(
        np.ones(8), lambda within, present: ((within - half) * present).sum(axis=1), 0.5, 1.0
    )


@plant("counted-divisor")
def divisor(leaky):
    def train(people, present, seed):
        sums = noisy(np.random.default_rng(seed), present @ people)
        return sums / (present.sum(axis=1, keepdims=True) if leaky else 2)

    return claim(train, np.full((2, 16), 16**-0.5))


# --- one person counts as several ----------------------------------------------------------------

SEGMENTS, SEGMENT_Z = 8, 2.0


@plant("segments-as-people")
def segments(leaky):
    z = SEGMENT_Z if leaky else SEGMENT_Z * SEGMENTS**0.5
    return of_sums(np.ones((2, SEGMENTS)), lambda p, present: present @ p, z, 1 / SEGMENT_Z)


@plant("segments-in-one-release")
def segments_at_once(leaky):
    def updates(people, present):
        whole = people.sum(axis=1)
        return (present * (whole if leaky else np.clip(whole, -1, 1))).sum(axis=1)

    return of_sums(np.ones((2, SEGMENTS)), updates)


@plant("returns-under-correlated-noise")
def returns(leaky):
    lag = np.arange(SEGMENTS)
    column = np.cumprod(np.where(lag > 0, (2 * lag - 1) / np.maximum(2 * lag, 1), 1.0))
    matrix = np.where(lag[:, None] >= lag, column[np.abs(lag[:, None] - lag)], 0.0)
    taken_part = np.ones(SEGMENTS)
    scale = np.linalg.norm(matrix[:, 0] if leaky else matrix @ taken_part)

    def train(people, present, seed):
        draws = np.random.default_rng(seed).normal(0, SEGMENT_Z * scale, (len(present), SEGMENTS))
        released = (present @ people)[:, None] * taken_part + draws @ np.linalg.inv(matrix).T
        return np.rint(released / GRID) * GRID

    return claim(train, [1.0, 0.0], 1 / SEGMENT_Z)


@plant("noise-per-vote")
def votes(leaky):
    z = SEGMENT_Z if leaky else SEGMENT_Z * 8**0.5
    return of_sums(np.ones((3, 8)), lambda p, present: present @ p, z, 1 / SEGMENT_Z)


# --- random numbers ------------------------------------------------------------------------------


@plant("reused-noise")
def reused_noise(leaky):
    def train(people, present, seed):
        first, second = np.random.default_rng(seed), np.random.default_rng(seed + (not leaky))
        before, after = present[:, :2] @ people[:2], present[:, 2:] @ people[2:]
        return np.stack([noisy(first, before), noisy(second, after)], axis=1)

    return claim(train, np.ones(4))


@plant("float32-tails")
def float32(leaky):
    def train(people, present, seed):
        rng, sums = np.random.default_rng(seed), present @ people
        if not leaky:
            return noisy(rng, sums, 1.0)
        return np.float32(sums) + rng.standard_normal(len(sums), dtype=np.float32)

    return claim(train, np.ones(2), 1.0)


@plant("fine-grid")
def fine_grid(leaky):
    def train(people, present, seed):
        rng, steps = np.random.default_rng(seed), 2.0**50 if leaky else 2.0**20
        moved = np.rint(present @ people * steps / Z) // 2 * 2 + present[:, 0]
        drawn = np.rint(rng.standard_normal((len(present), 8)) * steps)
        return (drawn.astype(np.int64) + moved[:, None].astype(np.int64)).astype(float)

    return claim(train, [8**-0.5, 0.0])


@plant("close-points")
def close_points(leaky):
    """A path of noise at the corners of a tiny box; people differ at the fourth corner only."""
    sides = np.array([15_260, 15_170]) * 2.0**-40
    points = 0.25 + sides * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    kernel = np.exp(-np.abs(points[:, None] - points).sum(axis=2))
    factor = np.linalg.cholesky(kernel)
    height = np.sqrt(np.prod(-np.expm1(-2 * sides)))

    def train(people, present, seed):
        rng = np.random.default_rng(seed)
        values = np.zeros((len(present), 4))
        values[:, 3] = present @ people * height
        values += rng.standard_normal(values.shape) @ factor.T
        if not leaky:
            values += 1e-4 * rng.standard_normal(values.shape)
        return np.rint(values * 2.0**42) * 2.0**-42

    return claim(train, [1.0, 0.0], 1.0)


@plant("batch-randomness")
def batch_randomness(leaky):
    """Everybody's update has a random side; the first key of the batch may draw all of them."""

    def updates(ids, present):
        sides = np.stack(
            [np.random.default_rng(one).choice([-1, 1], 64) for one in ids.astype(int)]
        )
        drawn = sides[present.argmax(axis=1)] if leaky else sides[:, 0]
        return (present * drawn).sum(axis=1)

    return of_sums(np.arange(100, 164), updates)


# --- experts -------------------------------------------------------------------------------------


@functools.cache
def sampled_claim(z, rate, count=1):
    events = [SampledGaussian(noise_multiplier=z, sampling_rate=rate, count=count)]
    return compose(events).epsilon(DELTA)


@plant("fixed-size-batches")
def fixed_batches(leaky):
    """One of two experts is drawn. If the first is absent, the second takes the place."""

    def train(people, present, seed):
        rng = np.random.default_rng(seed)
        coins = rng.random((len(present), 2))
        if leaky:
            drawn = np.where((coins[:, 0] < 0.5) & present[:, 0], 0, 1)
            return noisy(rng, people[drawn], 1.0)
        return noisy(rng, ((coins < 0.5) * present) @ people, 1.0)

    return sotto.Auditable(train, np.array([1.0, -1.0]), sampled_claim(1.0, 0.5), DELTA)


@plant("visible-coin")
def visible_coin(leaky):
    steps, share, z = 4, 0.15, 0.75

    def train(people, present, seed):
        rng = np.random.default_rng(seed)
        coins = rng.random((len(present), steps)) < share
        sums = (present @ people)[:, None] * np.ones(steps)
        released = noisy(rng, np.where(coins, sums, 0.0), z)
        return np.where(coins, released, 0.0) if leaky else released

    return sotto.Auditable(train, np.array([1.0, 0.0]), sampled_claim(z, share, steps), DELTA)


@plant("prefixes-of-a-fixed-log")
def fixed_log(leaky):
    def train(people, present, seed):
        drawn = np.random.default_rng(seed).random((len(present), len(people)))
        owner = np.where(present, drawn, -1.0).argmax(axis=1)
        return people[owner] if leaky else np.rint(drawn[:, :1] * 64)  # a fresh rollout

    return claim(train, np.random.default_rng(7).permutation(8)[:, None], 1.0)


@plant("reused-pool")
def reused_pool(leaky):
    """A drawn expert's first trajectory is shown, and the next one may be learnt from instead."""

    def train(people, present, seed):
        rng = np.random.default_rng(seed)
        drawn = np.where(present, rng.random(present.shape), -1.0).argmax(axis=1)
        shown = np.eye(len(people))[drawn] == 1
        updates = np.where(shown & leaky, people[:, 1], people[:, 0])
        return noisy(rng, (present * updates).sum(axis=1), 1.0)

    return claim(train, [[1.0, 1.0], [1.0, -1.0], [1.0, -1.0]], 1.0)


# --- published mechanisms ------------------------------------------------------------------------


@plant("published-ucb-counters")
def counters(leaky):
    steps, episodes, families = 20, 4, 3

    def train(people, present, seed):
        rng = np.random.default_rng(seed)
        counts = np.repeat((present @ people)[:, None] * steps, families, axis=1)
        if not leaky:
            return noisy(rng, counts, Z * steps * families**0.5)
        shape = (len(present), episodes, families)
        return np.rint(counts[:, None] + rng.laplace(scale=Z, size=shape))

    return claim(train, [1.0, 0.0])


@plant("functional-noise")
def functional(leaky):
    def train(people, present, seed):
        rng = np.random.default_rng(seed)
        rewards, learnt = present @ people, np.zeros(len(present))
        if not leaky:
            rewards = noisy(rng, rewards)
        seen = []
        for _ in range(5):
            learnt = learnt + 0.3 * (rewards - learnt)
            seen.append(noisy(rng, learnt))
        return np.stack([*seen, learnt], axis=1)

    return claim(train, [1.0, 0.5])
