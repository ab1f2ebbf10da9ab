"""The page report.html, which shows the results of a run and its certificate.

The page is made from the run directory alone: config.json, metrics.jsonl and the ledger, from which
the certificate is derived again. It contains its figures, which are also written to figures/.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from sotto.algorithms.base import Words
from sotto.errors import RunError
from sotto.files import write_whole
from sotto.privacy.bounds import at_most
from sotto.privacy.certificates.derive import Certificate, derive
from sotto.privacy.certificates.text import meaning_of_delta, sections, standing, unit_sentence
from sotto.privacy.ledger.ledger import NO_TIME
from sotto.runs.directory import Experiment, Run
from sotto.runs.guarantees import ANSWERS_ALONE, OF_ANSWERS, status_of
from sotto.runs.metrics import Line, read
from sotto.runs.registry import algorithm_named, config_from_json
from sotto.runs.report import elements, figures, learning
from sotto.runs.seeds import Sharing, sharing, weakest
from sotto.runs.summaries import shown_setting

_UNPROVED = "Nothing is proved, so no charge is shown."
_GUARANTEE = "The same guarantee at other values of delta. A smaller delta has a larger epsilon."


def write_reports(experiment: Experiment) -> list[Path]:
    """Writes the page of a run; for several seeds, one page for all and one for each.

    Raises:
        RunError: the run has no metrics yet, or the directory of a seed is a link.
        PrivacyError: the ledger is damaged or belongs to another run.
    """
    settings = experiment.settings
    config_from_json(algorithm_named(settings.algorithm), settings.config)  # checks them
    pages = []
    for run in experiment.runs:
        if run.path != experiment.path and run.path.is_symlink():
            raise RunError(f"{run.path} is a link, and would be written elsewhere; name the run")
    if len(experiment.runs) > 1:
        pages.append(_write(experiment.path, experiment.runs, experiment))
    pages += [_write(run.path, (run,), experiment) for run in experiment.runs]
    return pages


def _write(path: Path, runs: Sequence[Run], experiment: Experiment) -> Path:
    lines = [_shown(run, read(run.metrics)) for run in runs]
    if not all(lines):
        raise RunError(f"{path} has no metrics yet; train it first")
    certificates, shared = [], None
    if experiment.settings.ledger is not None:
        ledgers = [run.open_ledger() for run in runs]
        certificates = [derive(ledger) for ledger in ledgers]
        shared = sharing(experiment.settings, ledgers) if len(runs) > 1 else None
    algorithm = algorithm_named(experiment.settings.algorithm)
    config = config_from_json(algorithm, experiment.settings.config)
    title = f"{algorithm.name.upper()}{_task(experiment)}" + (
        f", {len(runs)} seeds" if len(runs) > 1 else f", seed {runs[0].seed}"
    )
    body = [
        f"<h1>{escape(title)}</h1>",
        elements.paragraph(_started(experiment.settings.created), True),
        _card(certificates, shared, algorithm.without_ledger(config)),
        elements.tiles(_numbers(lines, certificates, shared, algorithm.words)),
        *learning.learning(
            path / "figures",
            lines,
            algorithm.words,
            algorithm.unevaluated(config),
            experiment.settings.config.get("env_id"),
        ),
        *_pictures(path / "figures", lines, certificates, shared, _radius(experiment)),
        *(_seeds(runs, lines, certificates, shared) if len(runs) > 1 else ()),
        *(certificate_in_words(weakest(certificates), len(runs)) if certificates else ()),
        elements.heading("Settings"),
        elements.settings(
            {name: shown_setting(one) for name, one in runs[0].settings.config.items()}
        ),
        elements.heading("Command"),
        f"<pre>{escape(experiment.settings.command)}</pre>",
        elements.paragraph(
            "Software: "
            + ", ".join(f"{name} {one}" for name, one in experiment.settings.versions.items()),
            soft=True,
        ),
    ]
    file = path / "report.html"
    write_whole(file, elements.page(title, body))
    return file


def _shown(run: Run, lines: list[Line]) -> list[Line]:
    """Removes what earlier versions logged about a protected teacher."""
    if run.settings.ledger is None:
        return lines
    for line in lines:
        line.simulated.pop("teacher_return", None)
    return lines


def _started(created: str) -> str:
    if created == NO_TIME:
        return "The time is not stated, since it would reveal the number of attempts."
    return f"Started {created.replace('T', ' ')[:16]} UTC."


def _task(experiment: Experiment) -> str:
    env_id = experiment.settings.config.get("env_id")
    return f" on {env_id}" if env_id not in (None, "none") else ""


def _card(
    certificates: Sequence[Certificate], shared: Sharing | None, without: tuple[str, str]
) -> str:
    """Returns the card at the top of the page with status, epsilon and delta."""
    if not certificates:
        status, why = without
        return (
            f'<div class="card bad"><div class="status">{escape(status[:1].upper() + status[1:])}'
            f"</div><p>{escape(why)}</p></div>"
        )
    worst = weakest(certificates)
    status, sentence = standing(worst)
    if worst.status == "proved":
        sentence = worst.unit_sentence  # the numbers are in large, and of all seeds together
    if status_of(worst) == ANSWERS_ALONE:
        status, sentence = "Proved of the teacher's answers alone", f"{sentence} {OF_ANSWERS}"
    epsilon, several = worst.epsilon, ""
    if shared is not None:
        several = f" for each of {len(certificates)} seeds"
        if shared.epsilon is not None and math.isfinite(shared.epsilon):
            # The page is about all seeds, so its main number is the joint epsilon.
            epsilon = shared.epsilon
            several = (
                f" for all {len(certificates)} seeds together, {at_most(worst.epsilon)} for each"
            )
    number = at_most(epsilon) if math.isfinite(epsilon) else "∞"
    return (
        f'<div class="card{"" if worst.status == "proved" else " bad"}">'
        f'<div class="status">{escape(status)}</div>'
        f'<div class="epsilon">ε = {number} <small>at δ = {at_most(worst.delta, 3)}'
        f"{several}</small></div>"
        f"<p>{escape(sentence[0].upper() + sentence[1:])}</p></div>"
    )


def _numbers(
    lines: Sequence[Sequence[Line]],
    certificates: Sequence[Certificate],
    shared: Sharing | None,
    words: Words,
) -> dict[str, str]:
    """Returns the main numbers of the run, by label."""
    last = [one[-1] for one in lines]
    values = learning.numbers(last, words)
    values[f"{words.steps}, at most"] = f"{last[0].env_steps:,}"
    values["updates"] = f"{last[0].updates:,}"
    if "teacher_return" in last[0].simulated:
        values["the teacher's return"] = f"{last[0].simulated['teacher_return'][-1]:.1f}"
    if "answered" in last[0].released:
        most = max(line.released["answered"][-1] for line in last)
        values["rows answered" + ("" if len(lines) == 1 else ", at most")] = f"{most:,.0f}"
    elif certificates:
        each = " per seed" if shared is not None and shared.epsilon is None else ""
        values[f"{_whom(certificates[0])[1]}{each}"] = f"{certificates[0].persons:,}"
    return values


def _pictures(
    folder: Path,
    lines: Sequence[Sequence[Line]],
    certificates: Sequence[Certificate],
    shared: Sharing | None,
    radius: float | None,
) -> list[str]:
    """Draws every figure on privacy for which there are data, and returns the HTML."""
    if not certificates:
        return []
    certificate = weakest(certificates)
    if certificate.answers is not None:
        budget = (
            "Epsilon charged for the teacher's answers",
            "updates",
            "Joint epsilon of all answers that the teacher may give. All of it is charged with "
            "the first answer, since a student may decide to stop because of answers.",
        )
        return _cost(folder, lines, certificate, shared, budget)
    found: list[str] = []
    part = certificate.streams[-1].statement.parts.get("policy")
    if part is not None:
        figures.update_size(folder / "updates.png", lines, part.clip_norm, radius)
        adapts = "clip_norm" in lines[0][-1].released
        bound = "the current clip norm" if adapts else f"norm {part.clip_norm:.3g}"
        text = (
            f"Norm of the released average of users' updates, with noise. Each user's update is "
            f"clipped to {bound}, so the average without noise is not larger."
        )
        found.append(elements.picture(folder / "updates.png", text))
    one = _whom(certificate)[0]
    title, steps = f"Epsilon charged to the most charged {one}", "releases" if part else "updates"
    text = f"Epsilon of the {one} with the largest charge. "
    if certificate.streams[-1].statement.participation.kind == "once":
        text += (
            f"Each {one} takes part in one release, so the largest charge does not grow after the "
            "first release."
        )
    return found + _cost(folder, lines, certificate, shared, (title, steps, text))


def _cost(
    folder: Path,
    lines: Sequence[Sequence[Line]],
    certificate: Certificate,
    shared: Sharing | None,
    budget: tuple[str, str, str],
) -> list[str]:
    """Returns the part on the privacy cost; `budget` has its figure's title, steps and text."""
    found = [elements.heading("Privacy cost")]
    if shared is not None and shared.epsilon is not None:
        found.append(
            elements.paragraph(
                "The figures show each seed alone. The costs of the seeds add up, as said below."
            )
        )
    if certificate.status != "proved":
        return [*found, elements.paragraph(_UNPROVED)]
    *named, text = budget
    figures.budget(folder / "budget.png", lines, certificate.budget.epsilon, *named)
    figures.privacy_curve(
        folder / "guarantee.png", certificate.curve, certificate.epsilon, certificate.delta
    )
    return [
        *found,
        elements.picture(folder / "budget.png", text),
        elements.picture(folder / "guarantee.png", _GUARANTEE),
    ]


def _whom(certificate: Certificate) -> tuple[str, str]:
    """Returns the names of one protected unit and of several."""
    name = certificate.unit.name
    return name, "people" if name == "person" else f"{name}s"


def _radius(experiment: Experiment) -> float | None:
    """Returns the L2 radius of the trust region that determined the clip norm, or None."""
    config = experiment.settings.config
    if config.get("clip_norm_from") in ("l2-quantile", "l2-markov"):
        return float(config["trust_region_radius"])
    return None


def _seeds(
    runs: Sequence[Run],
    lines: Sequence[Sequence[Line]],
    certificates: Sequence[Certificate],
    shared: Sharing | None,
) -> list[str]:
    """Returns a table with a row for each seed."""
    rows = []
    for index, run in enumerate(runs):
        last = lines[index][-1]
        row = [str(run.seed), *(f"{value:.1f}" for value in last.evaluation.values())]
        if certificates:
            one = certificates[index]
            row += [one.status, at_most(one.epsilon)]
        rows.append(row)
    header = ["seed", *(f"return ({name})" for name in lines[0][-1].evaluation)]
    header += ["certificate", "epsilon"] if certificates else []
    found = [elements.heading("Seeds"), elements.table(header, rows)]
    if shared is not None:
        found.append(elements.paragraph(shared.words, soft=True))
    return found


def certificate_in_words(c: Certificate, seeds: int) -> list[str]:
    """Returns the part with all that the certificate's text says; that of the weakest seed."""
    opening = [": ".join(standing(c)), unit_sentence(c), meaning_of_delta(c)]
    head = f"Ledger head {c.head_hash}."
    if seeds > 1:
        # Seeds may share their people, who then have the larger epsilon of all seeds together.
        opening[0] = "Each seed has a certificate of its own. This is the weakest one, alone."
        head = "Each seed has its own ledger."
    return [
        elements.heading("The certificate in words"),
        *(elements.paragraph(one) for one in opening if one),
        *(elements.bullets(title, lines) for title, lines in sections(c)),
        elements.paragraph(f"Computed by: {c.method}. {head}", soft=True),
        elements.paragraph("Verify it with: sotto certificate RUN --verify", soft=True),
    ]
