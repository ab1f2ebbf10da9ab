"""The page of the comparison, docs/benchmarks.md, made of the kept results."""

import statistics
from collections.abc import Sequence
from typing import Any

from against.kept import PACKAGES, Row, median, ratio

Kept = dict[str, Any]

TITLES = {
    "ppo": "PPO without privacy",
    "private-rl": "Private policy gradient at equal epsilon",
    "speed": "DP-SGD: speed at equal noise",
    "accuracy": "DP-SGD: accuracy at equal epsilon",
    "accounting": "Epsilon of the same training",
}
WORDS = {
    "ppo": """\
CartPole-v1, 100,352 environment steps: 8 environments, 128 steps, 5 epochs, 4 minibatches, two
networks with two hidden layers of 64. Each library steps the environment that it brings: in JAX
for sotto and rejax, in Python for Stable-Baselines3. So the ratio to Stable-Baselines3 is mostly
that of JAX to Python. Compilation is apart. The return is the mean of 100 greedy episodes in
Gymnasium's environment.""",
    "private-rl": """\
CartPole-v1, delta 1e-5. One person is one trajectory, in one release. Every method has the same
people, network and length of episodes. DP-REINFORCE is built from `jax_privacy` (clipped
gradients of each person, noise) and calibrated by `dp_accounting`. Its learning rate, clip norm
and baseline are the best of 12 triples at each epsilon, on seeds that are not reported. sotto's
preset was chosen on other seeds, too, with more tries. Opacus with Stable-Baselines3 has no row.
Opacus bounds examples of a batch, and a trajectory is many examples, which PPO shuffles into many
minibatches. Nothing there bounds one person's share.""",
    "speed": """\
Digits of scikit-learn (1,437 pictures), two hidden layers of 128, 256 pictures a step on average,
noise multiplier 2, one thread for computing. A step of sotto has secret draws, clipping, noise,
and a ledger on disk. The peers get Poisson batches out of memory. The cost of privacy is the time
of a private step divided by that of the same library without privacy.""",
    "accuracy": """\
The same model and 168 steps (30 passes), delta 1e-5. Each library calibrates its noise by its own
accountant. The accuracy is that on 360 pictures that nobody learned from.""",
    "accounting": """\
Poisson sampling at a rate q, noise multiplier z, T releases, delta 1e-5. The true epsilon is
between two bounds by privacy loss distributions on a fine grid. sotto uses dp_accounting's
distributions and chooses their grid.""",
}


def page(kept: Kept, pictures: Sequence[str]) -> str:
    """Returns the page in Markdown.

    Args:
        kept: rooms by name, as `against.kept.keep` writes them.
        pictures: rooms that have a picture.
    """
    lines = [
        "# Benchmarks",
        "",
        "sotto is compared with other libraries on their own ground, in one command: `make bench`,",
        "or `python benchmarks/peers.py` where the peers are installed. `--only speed` makes one",
        "part again. Rates are medians of turns in which all take part alternately, on one",
        "machine. What counts are the ratios. Each is a median of the ratios of turns, so it may",
        "differ from the ratio of the two rates in the table.",
        "",
    ]
    for room, title in TITLES.items():
        if room not in kept:
            continue
        found = kept[room]
        lines += [f"## {title}", "", WORDS[room], ""]
        if found["quick"]:
            lines += ["**A quick run: its numbers mean nothing.**", ""]
        lines += [*TABLES[room](found["rows"]), ""]
        if room in pictures:
            lines += [f"![{title}](figures/benchmarks_{room.replace('-', '_')}.png)", ""]
        lines += [f"*{made(found)}*", ""]
    versions = {name: one for found in kept.values() for name, one in found["versions"].items()}
    named = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    return "\n".join([*lines, f"Versions: {named}.", ""])


def made(found: Kept) -> str:
    """Returns on which machine, from which commit and in what time a room was made."""
    return (
        f"{found['machine']}; commit {found['commit']}; {found['seconds']:.0f} seconds; "
        f"load at the end {found['load']:.1f}."
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]


def times(found: tuple[float, float, float]) -> str:
    """Returns a ratio with its range."""
    middle, low, high = found
    digits = 2 if middle < 10 else 0
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Returns mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def _ppo(rows: list[Row]) -> list[str]:
    peer = next(row for row in rows if row["name"] == "Stable-Baselines3")
    return table(
        ("library", "env-steps/s", "times Stable-Baselines3", "compiled in, s", "return, seeds"),
        [
            (
                row["name"],
                f"{median(row['rates']):,.0f}",
                times(ratio(row["rates"], peer["rates"])),
                f"{row['compile_seconds']:.1f}",
                f"{spread(row['returns'])}, {len(row['returns'])}",
            )
            for row in rows
        ],
    )


def _private_rl(rows: list[Row]) -> list[str]:
    return table(
        ("epsilon", "method", "noise multiplier", "people", "return", "seeds"),
        [
            (
                f"{row['epsilon']:g}",
                row["name"],
                f"{row['noise_multiplier']:.3f}",
                f"{row['people']:,}",
                spread(row["returns"]),
                str(len(row["returns"])),
            )
            for row in rows
        ],
    )


PLAIN = {"sotto": "JAX, not private", "jax_privacy": "JAX, not private"}
"""Training without privacy of each library; PyTorch's for the others."""


def _speed(rows: list[Row]) -> list[str]:
    rates = {row["name"]: row["rates"] for row in rows}

    def cost(name: str) -> str:
        if name.endswith("not private"):
            return ""
        return times(ratio(rates[PLAIN.get(name, "PyTorch, not private")], rates[name]))

    return table(
        ("library", "examples/s", "sotto is times as fast", "cost of privacy"),
        [
            (name, f"{median(found):,.0f}", times(ratio(rates["sotto"], found)), cost(name))
            for name, found in rates.items()
        ],
    )


def _accuracy(rows: list[Row]) -> list[str]:
    return table(
        ("epsilon", "library", "noise multiplier", "accuracy, %", "seeds"),
        [
            (
                f"{row['epsilon']:g}",
                row["name"],
                f"{row['noise_multiplier']:.4f}",
                spread([100 * one for one in row["accuracies"]]),
                str(len(row["accuracies"])),
            )
            for row in rows
        ],
    )


def below(row: Row) -> bool:
    """Whether an accountant returned less than the true epsilon can be."""
    return bool(row["epsilon"] < row["true"][0] * (1 - 1e-9))


def _accounting(rows: list[Row]) -> list[str]:
    return table(
        ("q, z, T", "true epsilon", "accountant", "epsilon", "too large by", "ms"),
        [
            (
                ", ".join(f"{one:g}" for one in row["case"]),
                f"{row['true'][0]:.4f} to {row['true'][1]:.4f}",
                row["name"],
                f"{row['epsilon']:.4f}" + (" **too small**" if below(row) else ""),
                f"{100 * (row['epsilon'] / row['true'][0] - 1):.2f}%",
                f"{row['milliseconds']:.0f}",
            )
            for row in rows
        ],
    )


TABLES = {
    "ppo": _ppo,
    "private-rl": _private_rl,
    "speed": _speed,
    "accuracy": _accuracy,
    "accounting": _accounting,
}
