"""An imported log, its public facts as settings, and what the algorithms on such logs share."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sotto.algorithms.base import Algorithm
from sotto.algorithms.settings import Settings, known
from sotto.data.imports.records import Records, load, require_numbered
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import Unit

_Config = TypeVar("_Config", bound=Settings)


def require_same(dataset: object, begun: str | None, found: str | None) -> None:
    """Refuses another import of a log than the one that a run began with.

    Its people are in other places. Some of them would then be in more releases than they paid for,
    and the ledger, which counts places, could not notice.

    Args:
        dataset: the dataset.
        begun: identity of the import in the run's settings; None if nothing was read yet.
        found: identity of the import that is there.

    Raises:
        ValueError: they differ.
    """
    if begun not in (None, found):
        raise ValueError(
            f"{dataset} is another import than the one with the identity {begun}, so its people "
            "are in other places; put that one back, or start a new run without --identity, whose "
            "epsilon adds to that of earlier runs"
        )


class Log:
    """The log of a training, which is read from disk once."""

    def __init__(self) -> None:
        self._read: tuple[str, Records] | None = None

    def __call__(self, config: Settings) -> Records:
        """Returns the log of settings with `on` and `identity`.

        Raises:
            ValueError: the dataset cannot be read, or is another import.
        """
        wanted: Any = config
        if self._read is None or self._read[0] != wanted.on:
            self._read = wanted.on, load(wanted.on)
        records = self._read[1]
        require_same(wanted.on, wanted.identity, records.identity)
        return records


def with_facts(config: _Config, records: Records, facts: Mapping[str, Any]) -> _Config:
    """Returns the settings with the public facts of the log; delta is a tenth of 1 / people.

    Args:
        config: settings with `on`, `delta`, and a field for each fact.
        records: the log.
        facts: values that an algorithm makes of the declaration, by the names of settings.

    Raises:
        ValueError: a setting contradicts the log.
    """
    wanted: Any = config
    declaration = records.declaration
    found: dict[str, Any] = {
        "identity": records.identity,
        "source": declaration.source,
        "licence": declaration.licence,
        "already_public": declaration.already_public,
        "people": declaration.people,
        "horizon": declaration.horizon,
        "reward_bounds": declaration.reward_bounds,
        **facts,
    }
    given = {one.name: getattr(config, one.name) for one in fields(config)}
    for name, fact in found.items():
        if given[name] is not None and given[name] != fact:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is {fact} in {wanted.on}; leave out {flag}")
    if wanted.delta is None:
        found["delta"] = 0.1 / declaration.people
    return replace(config, **found)


class LogAlgorithm(Algorithm[_Config]):
    """Algorithm that learns once from an imported log, each of whose people is protected.

    Attributes:
        unit: protected unit of the ledger.
    """

    charged = True
    one_seed = (
        "every seed would learn from the same people, and their privacy costs add up; leave out "
        "--seeds"
    )
    unit: ClassVar[Unit]

    def __init__(self) -> None:
        self._records = Log()

    def check_numbered(self, config: _Config) -> None:
        """Refuses a shared budget, since nobody knows which place of a log is whose.

        Raises:
            ValueError: always, for all datasets are imported.
        """
        wanted: Any = config
        require_numbered(known(wanted.on))

    def create_ledger(self, config: _Config, where: Path | str, run_id: str) -> Ledger:
        """Creates the ledger of a new run."""
        wanted: Any = config
        budget = Budget(epsilon=wanted.target_epsilon, delta=known(wanted.delta))
        return Ledger.create(where, run_id, unit=self.unit, budget=budget)
