"""Error of private marginalised importance sampling beside that of per-decision weights.

The marginalised estimator (Xie, Ma and Wang 2019) needs, for each step, noisy tables of visits, of
weighted transitions and of weighted rewards. A person adds one entry to each of three tables at
every step, so the noise has deviation z sqrt(3 T) in each entry, where weights are divided by their
largest value. Per-decision weights add two numbers for each person. The chain has two states; its
target policy takes action 1 with probability 0.9 and the behaviour takes it with 0.6.

Run: python benchmarks/marginalised.py
"""

import numpy as np

MULTIPLIER = 3.7304  # epsilon 1, delta 1e-5
MOVES = np.array([[[0.8, 0.2], [0.3, 0.7]], [[0.8, 0.2], [0.3, 0.7]]])  # state, action, next
BEHAVIOUR, TARGET = np.array([0.4, 0.6]), np.array([0.1, 0.9])
LARGEST = (TARGET / BEHAVIOUR).max()


def logs(rng: np.random.Generator, people: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns states [people, steps + 1] and actions [people, steps]; the reward is the state."""
    states = np.zeros((people, steps + 1), int)
    actions = (rng.random((people, steps)) < BEHAVIOUR[1]).astype(int)
    for step in range(steps):
        up = MOVES[states[:, step], actions[:, step], 1]
        states[:, step + 1] = rng.random(people) < up
    return states, actions


def marginalised(
    rng: np.random.Generator, states: np.ndarray, actions: np.ndarray, z: float
) -> float:
    """Returns the estimate from noisy tables."""
    steps, value = actions.shape[1], 0.0
    scale = z * np.sqrt(3 * steps)
    share = np.array([1.0, 0.0])
    for step in range(steps):
        now, weight = states[:, step], (TARGET / BEHAVIOUR)[actions[:, step]] / LARGEST
        reward = weight * states[:, step + 1]
        visits = np.bincount(now, minlength=2) + rng.normal(0, scale, 2)
        pairs = np.bincount(2 * now + states[:, step + 1], weight, 4) + rng.normal(0, scale, 4)
        gains = np.bincount(now, reward, 2) + rng.normal(0, scale, 2)
        known = np.maximum(visits, 1)
        value += float(share @ np.clip(LARGEST * gains / known, 0, 1))
        moves = np.maximum(LARGEST * pairs.reshape(2, 2) / known[:, None], 1e-9)
        share = share @ (moves / moves.sum(axis=1, keepdims=True))
    return value


def per_decision(
    rng: np.random.Generator, states: np.ndarray, actions: np.ndarray, clip: float, z: float
) -> float:
    """Returns the estimate from the noisy sum of weighted, centred rewards."""
    people, steps = actions.shape
    weights = np.minimum(np.cumprod((TARGET / BEHAVIOUR)[actions], axis=1), clip)
    middle = 0.5 * steps
    total = np.sum(weights * (states[:, 1:] - 0.5)) + rng.normal(0, z * clip * middle)
    return float(middle + total / people)


def truth(steps: int) -> float:
    """Returns the value of the target policy."""
    share, value = np.array([1.0, 0.0]), 0.0
    for _ in range(steps):
        share = np.einsum("s,a,san->n", share, TARGET, MOVES)
        value += share[1]
    return value


def main() -> None:
    """Prints root mean square errors over 400 logs, as a share of the range of returns."""
    rng = np.random.default_rng(0)
    print("steps people   marginalised  without noise   per-decision (best clip)  without noise")
    for steps in (2, 5, 10, 20):
        for people in (300, 1000, 5000):
            exact = truth(steps)
            errors = np.zeros((400, 2, 6))
            clips = (1.5, 2, 4, 8, 16, 50)
            for row in errors:
                log = logs(rng, people, steps)
                for column, z in enumerate((MULTIPLIER, 0.0)):
                    row[column, 0] = marginalised(rng, *log, z) - exact
                    row[column, 1:] = [per_decision(rng, *log, c, z) - exact for c in clips[:5]]
            found = np.sqrt(np.mean(errors**2, axis=0)) / steps
            print(
                f"{steps:5} {people:6} {found[0, 0]:14.4f} {found[1, 0]:14.4f} "
                f"{found[0, 1:].min():26.4f} {found[1, 1:].min():14.4f}"
            )


if __name__ == "__main__":
    main()
