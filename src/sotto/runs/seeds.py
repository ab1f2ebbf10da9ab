"""Whom several seeds of one training share, in words, and what their ledgers cost together.

Every seed has a ledger of its own, and its certificate is about that ledger alone. Where the seeds
learn from the same teacher, reward function or experts, whoever sees them all has seen releases
about the same people, and the costs add up: all ledgers are then composed as if they were one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sotto.algorithms.base import AnyLedger
from sotto.privacy.certificates.joint import together
from sotto.runs.directory import RunSettings
from sotto.runs.registry import algorithm_named, config_from_json

_CHOOSING = "Choosing a seed by looking at its people's data is not accounted for."


@dataclass(frozen=True)
class Sharing:
    """What several seeds have in common.

    Attributes:
        words: whom they share, and what follows, for people.
        epsilon: of all seeds together, at the delta that each of them has; infinite where nothing
            is proved, and None where no two seeds are about the same people.
    """

    words: str
    epsilon: float | None


def sharing(settings: RunSettings, ledgers: Sequence[AnyLedger]) -> Sharing:
    """Whom seeds share, which follows from what was trained and not from what was logged.

    Args:
        settings: of the experiment.
        ledgers: of its seeds, several.
    """
    these = f"These {len(ledgers)} seeds"
    algorithm = algorithm_named(settings.algorithm)
    same = algorithm.shared(config_from_json(algorithm, settings.config))
    if same is None and settings.population == "real":
        words = (
            f"{these} have each a ledger of their own, which numbers people from 0: it is for "
            "whoever holds the data to give every seed other people, and somebody who is in "
            f"several of them pays in each. {_CHOOSING}"
        )
        return Sharing(words, None)
    if same is None:
        words = (
            f"{these} are separate runs on separate simulated {algorithm.units}, and the "
            f"certificate of each holds for its own. {_CHOOSING}"
        )
        return Sharing(words, None)
    epsilon, delta = together(ledgers)
    cost = f", to epsilon {epsilon:.4g} at delta {delta:.3g}" if math.isfinite(epsilon) else ""
    words = (
        f"{these} {same}, each under a ledger of its own, which is all that its certificate "
        "is about. Whoever sees all of them, or one that was chosen among them, has seen something "
        f"of what all released, and the costs add up{cost}."
    )
    return Sharing(words, epsilon)
