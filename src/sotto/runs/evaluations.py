"""The directory of an evaluation on a log of people.

```
DIR/  evaluation.json  ledger.sqlite  values.json  certificate.json  linear.json (if learnt)
```

`evaluation.json` is written before the ledger is charged, and `values.json` after the release.
"""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sotto.algorithms.evaluation.release import UNIT
from sotto.errors import RunError
from sotto.files import read_model, require_regular, write_model
from sotto.frozen import FrozenModel
from sotto.privacy.ledger.entries import now, versions
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.runs import marks

SETTINGS = "evaluation.json"
_LEDGER = "ledger.sqlite"


class EvaluationSettings(FrozenModel):
    """Contents of evaluation.json.

    Attributes:
        run_id: id of the evaluation, which its ledger also contains.
        log: place of the log.
        settings: settings of the evaluation, as JSON values.
        versions: versions of the software.
        created: time of creation, ISO 8601 in UTC.
    """

    format: Literal[1] = 1
    run_id: str
    log: str
    settings: dict[str, Any]
    versions: dict[str, str]
    created: str


@dataclass(frozen=True)
class EvaluationRun:
    """The directory of an evaluation."""

    path: Path
    settings: EvaluationSettings

    @property
    def certificate(self) -> Path:
        """File of the certificate, which is derived from the ledger."""
        return self.path / "certificate.json"

    @property
    def values(self) -> Path:
        """File of the released values."""
        return self.path / "values.json"

    def open_ledger(self) -> Ledger:
        """Opens the ledger, and refuses one that is older than the certificate."""
        ledger = Ledger.open(self.path / _LEDGER, self.settings.run_id)
        marks.refuse_older(self.path, ledger)
        return ledger


def create_evaluation(
    out: Path, log: str, settings: dict[str, Any], budget: Budget
) -> tuple[EvaluationRun, Ledger]:
    """Makes the directory and its ledger; nothing is charged.

    Raises:
        RunError: `out` exists.
    """
    made = EvaluationSettings(
        run_id=uuid.uuid4().hex,
        log=log,
        settings=settings,
        versions=versions(),
        created=now(),
    )
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise RunError(
            f"{out} exists; name another --out, since every evaluation of the log has its cost"
        ) from None
    ledger = Ledger.create(out / _LEDGER, made.run_id, unit=UNIT, budget=budget)
    write_model(out / SETTINGS, made)
    return EvaluationRun(out, made), ledger


def is_evaluation(path: Path) -> bool:
    """Returns whether a directory holds an evaluation."""
    return (path / SETTINGS).is_file()


def open_evaluation(path: Path) -> EvaluationRun:
    """Returns the evaluation in a directory.

    Raises:
        RunError: its settings cannot be read.
    """
    require_regular(path)
    return EvaluationRun(path, read_model(path / SETTINGS, EvaluationSettings))
