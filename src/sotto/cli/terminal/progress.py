"""The display of a training's progress: a bar on a terminal, plain lines elsewhere."""

import logging
import time
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from sotto.algorithms.base import Words
from sotto.errors import visible
from sotto.privacy.bounds import at_most
from sotto.runs.training import Update

_SAMPLES = 8
"""Largest number of samples that are shown in a training."""


class _Notes(logging.Handler):
    """Shows what a long step of a training is doing."""

    def __init__(self, display: "Display") -> None:
        super().__init__(logging.INFO)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.note(record.getMessage())


class Display:
    """Shows return, epsilon and the time left after every chunk of updates; a context manager.

    Between chunks it shows the notes that `sotto` logs, such as how many completions are drawn.

    A language model that learns from simulated people also shows one of its completions now and
    then.

    Args:
        total: Number of updates of the whole training.
        policy: Policy whose return is shown.
        words: Names of the measured quantities.
        silent: Whether to show nothing.
    """

    def __init__(self, total: int, policy: str, words: Words, silent: bool) -> None:
        self._policy, self._words = policy, words
        self._silent = silent
        self._shown = 0
        self._first: tuple[float, int] | None = None
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.completed:>6.0f}/{task.total:.0f} updates"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=self._console,
            disable=silent or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("compiling", total=total)
        self._notes, self._log = _Notes(self), logging.getLogger("sotto")
        self._level = self._log.level

    def __enter__(self) -> "Display":
        self._bar.start()
        if not self._silent:
            self._log.addHandler(self._notes)
            self._log.setLevel(logging.INFO)
            self._log.propagate = False  # libraries may have added a handler that prints it again
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if not self._silent:
            self._log.removeHandler(self._notes)
            self._log.setLevel(self._level)
            self._log.propagate = True

    def note(self, text: str) -> None:
        """Shows a note about the work before the next chunk is complete."""
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            print(f"    {text}", flush=True)

    def __call__(self, update: Update) -> None:
        """Shows the state after one chunk."""
        text = "   ".join((*self._quantities(update), self._time_left(update)))
        self._bar.update(self._task, completed=update.updates, description=text)
        if not self._silent and not self._console.is_terminal:
            print(f"{update.updates:>6}/{update.total_updates} updates   {text}", flush=True)
        samples = update.lines[0].samples
        if samples and not self._silent and self._due(update):
            prompt, completion = map(visible, samples[self._shown % len(samples)])
            self._shown += 1
            if self._console.is_terminal:
                self._bar.console.print(Text.assemble(prompt, (completion, "bold")))
            else:
                print(f'    a sample: "{prompt}" is continued by "{completion}"', flush=True)

    def _due(self, update: Update) -> bool:
        """Returns whether the training is far enough for one more sample."""
        return update.updates * _SAMPLES >= self._shown * update.total_updates

    def _quantities(self, update: Update) -> list[str]:
        shown = []
        quantities = self._words.quantities or {self._policy: (self._words.measure, "")}
        for name, (word, _) in quantities.items():
            values = [line.evaluation[name] for line in update.lines if name in line.evaluation]
            if values:
                shown.append(f"{word} {np.mean(values):.{self._words.decimals}f}")
        released = [line.released.get("private_return_average") for line in update.lines]
        if all(released):
            shown.append(f"released return {np.mean([one[-1] for one in released if one]):.1f}")
        epsilons = [line.epsilon for line in update.lines if line.epsilon is not None]
        if epsilons:
            shown.append(f"epsilon {at_most(max(epsilons), 3)}")
        return shown

    def _time_left(self, update: Update) -> str:
        """Returns the time left, estimated without the first chunk, which includes compiling."""
        now, left = time.monotonic(), update.total_updates - update.updates
        if left == 0:
            return "done"
        if self._first is None:
            self._first = now, update.updates
            return "estimating time left"
        since, updates = self._first
        seconds = (now - since) / (update.updates - updates) * left
        return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"
