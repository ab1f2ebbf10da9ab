"""The section of report.html on learning: figures of what was measured, and samples of texts."""

from collections.abc import Sequence
from pathlib import Path

from sotto.algorithms.base import Words
from sotto.errors import visible
from sotto.rl.envs.registry import is_native
from sotto.runs.metrics import Line
from sotto.runs.report import elements, figures


def learning(
    folder: Path,
    lines: Sequence[Sequence[Line]],
    words: Words,
    unevaluated: str,
    env_id: str | None,
) -> list[str]:
    """Draws the figures on learning for which there are data, and returns the HTML.

    Args:
        folder: folder of the figures.
        lines: lines of each seed.
        words: names of what was measured.
        unevaluated: reason why there are no evaluations, if there are none.
        env_id: name of the environment of the evaluations, if the settings have one.
    """
    found = [elements.heading("Learning")]
    if not any(line.evaluation for one in lines for line in one):
        found.append(elements.paragraph(unevaluated))
    elif words.quantities:
        found += _quantities(folder, lines, words)
    else:
        found += _returns(folder, lines, words.steps, env_id)
    found += _samples(lines[0])
    if "private_return" in lines[0][-1].released:
        figures.released_returns(folder / "returns.png", lines)
        caption = (
            "Mean return of the users in each release, clipped to a public range, with the noise "
            "of the release."
        )
        found.append(elements.picture(folder / "returns.png", caption))
    return found


def labels(words: Words) -> dict[str, tuple[str, str]]:
    """Returns label and unit of each measurement, by the name that the metrics use."""
    return dict(words.quantities) or {
        "ema": ("return, averaged policy", figures.RETURN),
        "last": ("return, last policy", figures.RETURN),
    }


def numbers(last: Sequence[Line], words: Words) -> dict[str, str]:
    """Returns what was measured last, by label; `last` has one line for each seed."""
    values = {}
    for name, (label, _) in labels(words).items():
        found = [line.evaluation[name] for line in last if name in line.evaluation]
        if found:
            values[label] = figures.mean_and_spread(found, words.decimals)
    return values


def _returns(
    folder: Path, lines: Sequence[Sequence[Line]], steps: str, env_id: str | None
) -> list[str]:
    figures.learning_curve(folder / "learning.png", lines, steps)
    caption = "Return of released policies in greedy episodes"
    if env_id is not None and is_native(env_id):  # the program itself makes their people
        caption += (
            " with fresh simulated people. The episodes use no data of the people in training."
        )
    else:  # a name does not say whom an environment meets
        caption += "." if env_id is None else f" in {env_id}."
    if len(lines) > 1:
        caption += " The band is one standard deviation over seeds."
    return [elements.picture(folder / "learning.png", caption)]


def _quantities(folder: Path, lines: Sequence[Sequence[Line]], words: Words) -> list[str]:
    figures.quantities(folder / "learning.png", lines, words.quantities)
    return [elements.picture(folder / "learning.png", words.meaning)]


def _samples(lines: Sequence[Line]) -> list[str]:
    """Returns a table of texts before and after training, if there are any.

    Runs of earlier versions have no texts of the base model; their first samples are shown.
    """
    written = [line for line in lines if line.samples]
    if not written:
        return []
    first, last = written[0], written[-1]
    before, after = dict(first.samples_before or first.samples), dict(last.samples)
    rows = [[prompt, before[prompt], after[prompt]] for prompt in before if prompt in after]
    then = "base model" if first.samples_before else f"after update {first.updates}"
    header = ["prompt", then, f"after update {last.updates}"]
    return [
        "<h3>Samples</h3>",
        elements.table(header, [[visible(text) for text in row] for row in rows]),
        elements.paragraph(
            "Completions of prompts of simulated people who never take part in training, drawn "
            "with the same random numbers.",
            soft=True,
        ),
    ]
