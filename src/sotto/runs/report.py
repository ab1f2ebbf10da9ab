"""report.html: one page that says what a run did and what is proved about it.

The page is made from the run directory alone (config.json, metrics.jsonl and the ledger, from
which the certificate is derived afresh) and holds its figures, which also lie in figures/.
"""

import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from sotto.errors import RunError
from sotto.privacy.certificates.derive import Certificate, derive
from sotto.privacy.certificates.text import meaning_of_delta
from sotto.privacy.ledger.ledger import NO_TIME
from sotto.runs import figures, page
from sotto.runs.directory import Experiment, Run
from sotto.runs.metrics import Line, read
from sotto.runs.registry import algorithm_named, config_from_json
from sotto.runs.seeds import Sharing, sharing

_GUARANTEE = (
    "The same guarantee read at other deltas: a smaller probability of failure has a larger "
    "epsilon."
)


def write_reports(experiment: Experiment) -> list[Path]:
    """Writes the page of a run; of several seeds, one for all of them and then one for each.

    Raises:
        RunError: nothing has been trained yet.
        PrivacyError: the ledger is damaged or another run's.
    """
    settings = experiment.settings
    config_from_json(algorithm_named(settings.algorithm), settings.config)  # or it is refused
    pages = []
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
    title = f"{experiment.settings.algorithm.upper()}{_task(experiment)}" + (
        f", {len(runs)} seeds" if len(runs) > 1 else f", seed {runs[0].seed}"
    )
    body = [
        f"<h1>{escape(title)}</h1>",
        page.paragraph(_started(experiment.settings.created), True),
        _card(certificates, shared, _without_ledger(experiment)),
        page.tiles(_numbers(lines, certificates, shared)),
        *_pictures(path / "figures", lines, certificates, shared, _radius(experiment)),
        *(_seeds(runs, lines, certificates, shared) if len(runs) > 1 else ()),
        *(_certificate(_worst(certificates), len(runs)) if certificates else ()),
        page.heading("Settings"),
        page.settings({name: _plain(value) for name, value in runs[0].settings.config.items()}),
        page.heading("How it was made"),
        f"<pre>{escape(experiment.settings.command)}</pre>",
        page.paragraph(
            "Software: "
            + ", ".join(f"{name} {one}" for name, one in experiment.settings.versions.items()),
            soft=True,
        ),
    ]
    file = path / "report.html"
    temporary = path / ".report.html"
    temporary.write_text(page.page(title, body), encoding="utf-8")
    os.replace(temporary, file)
    return file


def _shown(run: Run, lines: list[Line]) -> list[Line]:
    """The lines, without what earlier versions logged of a protected teacher."""
    if run.settings.ledger is None:
        return lines
    for line in lines:
        line.simulated.pop("teacher_return", None)
    return lines


def _started(created: str) -> str:
    if created == NO_TIME:
        return "When it was made is not said, since it would tell how many tries there were."
    return f"Started {created.replace('T', ' ')[:16]} UTC."


def _task(experiment: Experiment) -> str:
    env_id = experiment.settings.config.get("env_id")
    return f" on {env_id}" if env_id else ""


def _without_ledger(experiment: Experiment) -> tuple[str, str]:
    """What the page says of a run that has no ledger: a few words, and a sentence."""
    algorithm = algorithm_named(experiment.settings.algorithm)
    config = config_from_json(algorithm, experiment.settings.config)
    return algorithm.without_ledger(config)


def _card(
    certificates: Sequence[Certificate], shared: Sharing | None, without: tuple[str, str]
) -> str:
    """What is proved, in the largest letters of the page."""
    if not certificates:
        return (
            f'<div class="card bad"><div class="status">{escape(without[0])}</div>'
            f"<p>{escape(without[1])}</p></div>"
        )
    worst = _worst(certificates)
    words = {
        "proved": ("Proved", worst.unit_sentence),
        "paper-claim": (
            "Not proved",
            "The run follows a paper whose claim does not hold for these steps: "
            + "; ".join(f"{gap.name} ({gap.why})" for gap in worst.gaps)
            + ". Nothing is promised to anybody.",
        ),
        "none": ("No guarantee", "Nothing was released, or nothing can be proved about it."),
    }
    status, sentence = words[worst.status]
    epsilon, several = worst.epsilon, ""
    if shared is not None:
        several = f" for each of {len(certificates)} seeds"
        if shared.epsilon is not None and math.isfinite(shared.epsilon):
            # The page is about all seeds, and so is its largest number.
            epsilon = shared.epsilon
            several = f" for all {len(certificates)} seeds together, {worst.epsilon:.4g} for each"
    number = f"{epsilon:.4g}" if math.isfinite(epsilon) else "∞"
    return (
        f'<div class="card{"" if worst.status == "proved" else " bad"}">'
        f'<div class="status">{status}</div>'
        f'<div class="epsilon">ε = {number} <small>at δ = {worst.delta:.3g}{several}</small></div>'
        f"<p>{escape(sentence)}</p></div>"
    )


def _worst(certificates: Sequence[Certificate]) -> Certificate:
    """The seed that promises least."""
    return max(certificates, key=lambda one: (one.status != "proved", one.epsilon))


def _numbers(
    lines: Sequence[Sequence[Line]], certificates: Sequence[Certificate], shared: Sharing | None
) -> dict[str, str]:
    """The run in a few numbers."""
    last = [one[-1] for one in lines]
    values = {}
    for name, label in (("ema", "return, average of policies"), ("last", "return, last policy")):
        returns = [line.evaluation[name] for line in last if name in line.evaluation]
        if returns:
            spread = f" ± {np.std(returns):.1f}" if len(returns) > 1 else ""
            values[label] = f"{np.mean(returns):.1f}{spread}"
    values["environment steps at most"] = f"{last[0].env_steps:,}"
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
    """Draws every figure there are data for."""
    found = [page.heading("What it learned")]
    if any(line.evaluation for one in lines for line in one):
        figures.learning_curve(folder / "learning.png", lines)
        caption = "Greedy episodes of released policies with fresh simulated people, no one's data."
        if len(lines) > 1:
            caption += " The band is one standard deviation over seeds."
        found.append(page.picture(folder / "learning.png", caption))
    else:
        found.append(page.paragraph("There is no simulator to evaluate the policies in."))
    if "private_return" in lines[0][-1].released:
        figures.released_returns(folder / "returns.png", lines)
        caption = "A part of every release, within its public range and with the noise it states."
        found.append(page.picture(folder / "returns.png", caption))
    if not certificates:
        return found
    certificate = _worst(certificates)
    if certificate.answers is not None:
        return [*found, *_cost_of_answers(folder, lines, certificate, shared)]
    part = certificate.streams[-1].statement.parts.get("policy")
    if part is not None:
        figures.update_size(folder / "updates.png", lines, part.clip_norm, radius)
        adapts = "clip_norm" in lines[0][-1].released
        bound = "the clip norm of the moment" if adapts else f"{part.clip_norm:.3g}"
        text = (
            f"The released average of users' updates, noise included. Each user's own update is "
            f"clipped to {bound}, and so is their average; the rest is noise."
        )
        found.append(page.picture(folder / "updates.png", text))
    found += _cost(shared)
    if certificate.status != "proved":
        return [*found, page.paragraph("Nothing is proved, so there is no budget to show.")]
    one = _whom(certificate)[0]
    title, steps = f"Budget charged to the worst {one}", "releases" if part else "updates"
    figures.budget(folder / "budget.png", lines, certificate.budget.epsilon, title, steps)
    figures.privacy_curve(
        folder / "guarantee.png", certificate.curve, certificate.epsilon, certificate.delta
    )
    once = certificate.streams[-1].statement.participation.kind == "once"
    return [
        *found,
        page.picture(
            folder / "budget.png",
            f"What the worst {one} has paid. "
            + (
                f"Each {one} takes part in one release, so none pays more after the last release "
                "than after the first."
                if once
                else ""
            ),
        ),
        page.picture(
            folder / "guarantee.png",
            _GUARANTEE,
        ),
    ]


def _cost(shared: Sharing | None) -> list[str]:
    """The heading of what it cost, and whose cost the figures show."""
    found = [page.heading("What it cost")]
    if shared is not None and shared.epsilon is not None:
        found.append(
            page.paragraph(
                "The figures are of each seed alone; the seeds' costs add up, see below."
            )
        )
    return found


def _whom(certificate: Certificate) -> tuple[str, str]:
    """What a run protects one of, and several of them."""
    name = certificate.unit.name
    return name, "people" if name == "person" else f"{name}s"


def _cost_of_answers(
    folder: Path,
    lines: Sequence[Sequence[Line]],
    certificate: Certificate,
    shared: Sharing | None,
) -> list[str]:
    """Figures of a teacher's budget."""
    found = _cost(shared)
    if certificate.status != "proved":
        return [*found, page.paragraph("Nothing is proved, so there is no budget to show.")]
    figures.budget(
        folder / "budget.png",
        lines,
        certificate.budget.epsilon,
        "Budget charged for the teacher's answers",
        "updates",
    )
    figures.privacy_curve(
        folder / "guarantee.png", certificate.curve, certificate.epsilon, certificate.delta
    )
    return [
        *found,
        page.picture(
            folder / "budget.png",
            "What all answers that the teacher may give cost together. All of it is charged with "
            "the first one, since a student may stop by what it has seen.",
        ),
        page.picture(folder / "guarantee.png", _GUARANTEE),
    ]


def _radius(experiment: Experiment) -> float | None:
    """Radius of the trust region that the clip norm came from, where it is one of L2 norm."""
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
    """One row for each seed."""
    rows = []
    for index, run in enumerate(runs):
        last = lines[index][-1]
        row = [str(run.seed), *(f"{value:.1f}" for value in last.evaluation.values())]
        if certificates:
            one = certificates[index]
            row += [one.status, f"{one.epsilon:.4g}"]
        rows.append(row)
    header = ["seed", *(f"return ({name})" for name in lines[0][-1].evaluation)]
    header += ["certificate", "epsilon"] if certificates else []
    found = [page.heading("Seeds"), page.table(header, rows)]
    if shared is not None:
        found.append(page.paragraph(shared.words, soft=True))
    return found


def _certificate(c: Certificate, runs: int) -> list[str]:
    """The certificate in words; without a proof, nothing is said to be protected."""
    protected = [
        page.paragraph(c.unit_sentence),
        page.paragraph(meaning_of_delta(c)),
        page.bullets("Protected", [(line, "") for line in c.protects]),
    ]
    return [
        page.heading("The certificate in words"),
        *(protected if c.status == "proved" else [page.paragraph("Nothing is proved.")]),
        page.bullets("Not protected", [(line, "") for line in c.does_not_protect]),
        page.bullets("Steps that are not private", [(gap.name, gap.why) for gap in c.gaps]),
        page.bullets("Enforced by the code", _assumptions(c, "code")),
        page.bullets("Up to you", _assumptions(c, "user")),
        page.paragraph(
            f"Computed by: {c.method}. "
            + (
                f"Ledger head {c.head_hash}." if runs == 1 else "Each seed has a ledger of its own."
            ),
            soft=True,
        ),
        page.paragraph("Check it with: sotto certificate RUN --verify", soft=True),
    ]


def _assumptions(c: Certificate, by: str) -> list[tuple[str, str]]:
    return [(one.statement, one.how) for one in c.assumptions if one.enforced_by == by]


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
