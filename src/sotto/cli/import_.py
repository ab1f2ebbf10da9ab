"""`sotto import`: turns a log of real people into a dataset in which each person is one unit."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.data.datasets import require_new
from sotto.data.imports import drafts
from sotto.data.imports.declaration import Categories, Column, Declaration
from sotto.errors import RunError
from sotto.extras import require

_NOT_PRIVATE = (
    "These counts are for the owner of the log and rounded down to tens. They are no private "
    "releases: do not publish them. The dataset does not hold them."
)
_Drop = Annotated[
    Literal["row", "person"] | None,
    arg(
        help="An unusable row drops this row (the default) or its whole person.",
        metavar="row|person",
    ),
]


@command("import")
def import_(
    logs: Positional[tuple[str, ...]],
    /,
    out: Path,
    declare: Path | None = None,
    person: str | None = None,
    time: str | None = None,
    episode: str | None = None,
    observation: tuple[str, ...] = (),
    action: tuple[str, ...] = (),
    reward: str | None = None,
    propensity: str | None = None,
    density: str | None = None,
    terminated: str | None = None,
    fill: tuple[str, ...] = (),
    people: int | None = None,
    horizon: int | None = None,
    drop: _Drop = None,
    table: str | None = None,
    query: str | None = None,
    source: str | None = None,
    licence: str | None = None,
    already_public: bool = False,
    json: Json = False,
) -> None:
    """Imports a log of people as a Minari dataset in which each person is one unit.

    The log is a CSV file, a Parquet file, the folder of a Hugging Face dataset on disk, or the
    SQLAlchemy URL of a database. If it comes in several files, name all of them at once: all rows
    with one id are one person. Bounds, categories, the number of people and the horizon are public:
    you declare them, and they are never read off the log. On a terminal, sotto asks for missing
    ones. Elsewhere it prints a template for --declare. docs/own_data.md is the guide.

    A column of numbers is NAME=LOW..HIGH, and one of categories is NAME=A,B,C. Numbers outside
    their bounds are moved to the bounds. Rows with an unknown action or a missing value are left
    out.

    Examples:
      sotto import records.csv --person patient --time week --observation age=0..120 sex=f,m \\
        --action dose=none,low,high --reward relief=0..10 --propensity chance=0.1 \\
        --people 500 --horizon 12 --out runs/log
      sotto import january.csv february.csv --declare visits.json --out runs/log
      sotto import postgresql://reader@server/clinic --table visits --declare visits.json \\
        --out runs/log

    Args:
        logs: File, folder or database URL; or several files or folders, in the order of time.
        out: Folder of the dataset, which must not exist. Only you may read it.
        declare: JSON or TOML file with a declaration; options take precedence over it.
        person: Column with the id of the person: text or whole numbers.
        time: Column that orders the rows of a person. By default they keep the order of a file. A
            database has none, and needs it unless the horizon is 1.
        episode: Column with the id of an episode of the person. By default a person is one episode.
        observation: Columns that the policy sees.
        action: One column of categories, or columns of numbers.
        reward: Column of the reward.
        propensity: Column of the probability of the logged action, as NAME=LEAST.
        density: Column of the density of the logged real action, as NAME=LEAST.
        terminated: Column of truth values: whether the episode ended by itself with this row. By
            default each did that the horizon does not cut.
        fill: Values of missing observations, as NAME=VALUE.
        people: Number of places for people, which will be public; the log may have fewer people.
        horizon: Largest number of steps of a person. Later steps are left out.
        table: Table or view of the database, or SCHEMA.TABLE.
        query: SELECT statement in place of a table, for SQLite and PostgreSQL.
        source: Origin of the log in words, which the dataset records.
        licence: Terms of use in words, which the dataset records.
        already_public: The log has been published already, which the dataset records.
    """
    if not logs:
        raise RunError("there is no log to import; name a file, a folder or a database's URL")
    require_new(out)
    require("minari", "h5py", "pyarrow")
    from sotto.data.imports.importing import import_log

    draft = drafts.read(declare) if declare is not None else {}
    given: drafts.Draft = {
        "person": person,
        "time": time,
        "episode": episode,
        "observation": [drafts.column(word) for word in observation] or None,
        "action": [drafts.column(word) for word in action] or None,
        "reward": drafts.column(reward) if reward is not None else None,
        "propensity": drafts.chance(propensity) if propensity is not None else None,
        "density": drafts.chance(density) if density is not None else None,
        "terminated": terminated,
        "people": people,
        "horizon": horizon,
        "drop": drop,
        "source": source,
        "licence": licence,
        "already_public": already_public or None,
    }
    Declaration.refuse_unknown(draft)
    draft |= {name: value for name, value in given.items() if value is not None}
    draft = drafts.filled(draft, fill) if fill else draft
    if drafts.missing(draft) and not json and sys.stdin.isatty():
        draft = drafts.asked(draft, lambda question: input(f"{question}: ").strip())
    if places := drafts.missing(draft):
        print(drafts.template(draft), file=sys.stderr)
        raise RunError(
            f"{', '.join(' of '.join(reversed(place)) for place in places)} must be declared; "
            "complete the template above, and give it with --declare"
        )
    declaration = Declaration.of(draft)
    say = partial(print, file=sys.stderr, flush=True)
    first, *parts = logs
    tally = import_log(first, declaration, out, parts=parts, table=table, query=query, say=say)
    counts = tally.as_json()
    if json:
        print_json(_as_json(out, declaration, counts))
    else:
        print("\n".join(_lines(out, declaration, counts)))


def _as_json(out: Path, declaration: Declaration, counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": str(out),
        "declaration": declaration.model_dump(mode="json"),
        "counts": counts,
        "counts_are": _NOT_PRIVATE,
    }


def _lines(out: Path, declaration: Declaration, counts: dict[str, Any]) -> list[str]:
    """Returns what was declared, and what became of the rows."""
    steps = "1 step" if declaration.horizon == 1 else f"{declaration.horizon:,} steps"
    size = declaration.observation_size
    lines = [
        f"{out}: {declaration.people:,} places for people, at most {steps} each, observations of "
        f"{size} number{'' if size == 1 else 's'}",
        "Declared:",
        *(f"  observation  {_column(one)}" for one in declaration.observation),
        *(f"  action       {_column(one)}" for one in declaration.action),
        f"  reward       {_column(declaration.reward)}",
    ]
    if declaration.chance is not None:
        name = "propensity" if declaration.discrete else "density"
        lines.append(
            f"  {name:<12} {declaration.chance.column}, at least {declaration.chance.low:g}"
        )
    if declaration.terminated is not None:
        lines.append(f"  terminated   {declaration.terminated}")
    lines += [
        "Counts:",
        f"  rows read {_about(counts['rows'])}, steps kept {_about(counts['kept'])}, "
        f"people kept {_about(counts['people'])}",
        f"  rows left out: without a person {_about(counts['nobody'])}, unusable "
        f"{_about(counts['unusable'])}, beyond the horizon {_about(counts['beyond_horizon'])}, "
        f"not parsed {_about(counts['unparsed'])}",
        f"  people left out: {_about(counts['people_dropped'])}",
        f"  rows of the same person and time: {_about(counts['same_time'])}",
        *_about_each(counts["cells"]),
        _NOT_PRIVATE,
    ]
    return lines


def _column(one: Column) -> str:
    filled = "" if one.fill is None else f", {one.fill} if missing"
    if isinstance(one, Categories):
        return f"{one.column}, one of {', '.join(map(str, one.categories))}{filled}"
    return f"{one.column}, {one.low:g} to {one.high:g}{filled}"


def _about_each(cells: dict[str, int]) -> list[str]:
    """Returns a line for each kind of cells with a count, and one for all others together."""
    lines = [f"  cells of {name}: {_about(count)}" for name, count in cells.items() if count]
    few = [name.rpartition(": ") for name, count in cells.items() if not count]
    if few:
        columns, kinds = (
            ", ".join(dict.fromkeys(one)) for one in list(zip(*few, strict=True))[::2]
        )
        each = "each other kind" if lines else "each kind"
        lines.append(f"  cells of {columns}: {_about(0)} of {each} ({kinds})")
    return lines


def _about(count: int) -> str:
    return f"{count:,} or a few more" if count else "fewer than 10"
