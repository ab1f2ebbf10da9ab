"""Metrics of a run: metrics.jsonl, with a line per chunk of training, and TensorBoard events.

Every quantity has a heading that says why it may be written:

* `released`: functions of releases, one value per update. They are public.
* `evaluation`: returns of released policies on fresh simulated people, or other measurements of
  them. They are public.
* `simulated`: facts about the people in training, written only if these are simulated.
"""

import json
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter

from sotto.errors import RunError
from sotto.files import strict_json

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that is null in JSON where it is NaN."""


@dataclass(frozen=True)
class Line:
    """Metrics of one chunk of one run.

    Attributes:
        updates: number of updates so far.
        first_update: number of updates before this chunk.
        env_steps: largest possible number of environment steps so far, a public number.
        seconds: time since this session of the training began; 0 where people are real, since their
            time shows in it.
        epsilon: epsilon charged so far; None without privacy, or if nothing is proved.
        released: one value for each update of this chunk.
        evaluation: mean return of each released policy on fresh simulated people, or the quantities
            that the algorithm's `words` name.
        simulated: one value for each update of this chunk; NaN if no episode ended.
        samples: prompts of simulated people, and what the model writes after them.
        before, samples_before: evaluation and samples of the model before training, in the first
            line, if the algorithm begins with a public model.
        charges, head_hash: the ledger's mark (`marks.Mark`); None for a run without a ledger, and
            in lines of earlier versions.
    """

    updates: int
    first_update: int
    env_steps: int
    seconds: float
    epsilon: float | None
    released: dict[str, list[Number]] = field(default_factory=dict)
    evaluation: dict[str, Number] = field(default_factory=dict)
    simulated: dict[str, list[Number]] = field(default_factory=dict)
    charges: int | None = None
    head_hash: str | None = None
    samples: tuple[tuple[str, str], ...] = ()
    before: dict[str, Number] = field(default_factory=dict)
    samples_before: tuple[tuple[str, str], ...] = ()


_LINE = TypeAdapter(Line)


class MetricsWriter:
    """Appends the lines of one run to its metrics.jsonl and its TensorBoard events.

    Events of a line without seconds have no time either: it is that of 1970.
    """

    def __init__(self, run: Path, steps_per_update: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self._file = run / "metrics.jsonl"
        self._steps_per_update = steps_per_update
        _cut_torn_line(self._file)
        (run / "tensorboard").mkdir(exist_ok=True)
        # Events are written at once: a full disk would kill the thread of tensorboardX's writer.
        self._events = EventsWriter(str(run / "tensorboard" / "events"))

    def append(self, line: Line) -> None:
        """Appends one line."""
        write(self._file, line)
        now = time.time() if line.seconds else 0.0
        for heading in ("released", "simulated"):
            for name, values in getattr(line, heading).items():
                for number, value in enumerate(values, line.first_update):
                    self._add(f"{heading}/{name}", value, number, now)
        for name, value in line.evaluation.items():
            self._add(f"evaluation/{name}", value, line.updates, now)
        if line.epsilon is not None:
            self._add("epsilon", line.epsilon, line.updates, now)
        self._events.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._events.close()

    def _add(self, name: str, value: float, updates: int, now: float) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        if math.isfinite(value):
            step = updates * self._steps_per_update
            event = Event(summary=scalar(name, value), wall_time=now, step=step)
            self._events.write_event(event)


def write(file: Path, line: Line) -> None:
    """Appends a line to metrics.jsonl, and nothing to TensorBoard, whose events have times."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(strict_json(asdict(line)) + "\n")


def read(file: Path) -> list[Line]:
    """Reads the lines of a run, in order of updates.

    An incomplete last line of a killed run is left out. If a resumed run repeated chunks, their
    first lines are left out.

    Raises:
        RunError: a line cannot be read.
    """
    lines: list[Line] = []
    if not file.exists():
        return lines
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break
        try:
            line = _LINE.validate_python(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise RunError(f"line {number} of {file} cannot be read; remove it") from error
        while lines and lines[-1].updates > line.first_update:
            lines.pop()
        lines.append(line)
    return lines


def _cut_torn_line(file: Path) -> None:
    """Removes an incomplete last line, which a killed run may leave."""
    if file.exists():
        contents = file.read_bytes()
        os.truncate(file, contents.rfind(b"\n") + 1)
