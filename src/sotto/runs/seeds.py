"""The people whom several seeds of one training share, and the joint cost of the seeds' ledgers.

Every seed has a separate ledger, and its certificate is about that ledger alone. If the seeds learn
from the same teacher, reward function or experts, their releases are about the same people. So may
be those of seeds of real people, which earlier versions trained. The costs then add up, and all
ledgers are composed as if they were one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sotto.algorithms.base import AnyLedger
from sotto.privacy.bounds import guarantee
from sotto.privacy.certificates.joint import together
from sotto.privacy.certificates.model import Certificate
from sotto.runs.directory import RunSettings
from sotto.runs.registry import algorithm_named, config_from_json

_CHOOSING = "Choosing a seed by looking at people's data is not accounted for."


@dataclass(frozen=True)
class Sharing:
    """Joint guarantee of several seeds.

    Attributes:
        words: explanation of what the seeds share, for the user.
        epsilon: joint epsilon of all seeds at the delta of each of them. It is infinite if nothing
            is proved, and None if no two seeds are about the same people.
    """

    words: str
    epsilon: float | None


def weakest(certificates: Iterable[Certificate]) -> Certificate:
    """Returns the certificate that promises least: one of which nothing is proved comes first."""
    return max(certificates, key=lambda one: (one.status != "proved", one.epsilon))


def sharing(settings: RunSettings, ledgers: Sequence[AnyLedger]) -> Sharing:
    """Returns what the seeds share. It follows from the algorithm and its settings alone.

    Args:
        settings: settings of the experiment.
        ledgers: ledgers of its seeds, at least two.
    """
    these = f"These {len(ledgers)} seeds"
    algorithm = algorithm_named(settings.algorithm)
    same = algorithm.shared(config_from_json(algorithm, settings.config))
    if same is None and settings.population == "real":  # earlier versions trained such seeds
        same = "each number real people from 0, and may have met the same people"
    if same is None:
        words = (
            f"{these} are separate runs on separate simulated {algorithm.units}, and each "
            f"certificate holds for the {algorithm.units} of its run. {_CHOOSING}"
        )
        return Sharing(words, None)
    epsilon, delta = together(ledgers)
    cost = f", to {guarantee(epsilon, delta)}" if math.isfinite(epsilon) else ""
    words = (
        f"{these} {same}. Each has its own ledger, and its certificate is about that ledger "
        "alone. Whoever sees all seeds, or one that was chosen among them, has seen results of "
        f"the releases of all seeds, and the costs add up{cost}."
    )
    return Sharing(words, epsilon)
