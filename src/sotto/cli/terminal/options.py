"""Options that several commands have, each with its help."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

Json = Annotated[bool, arg(help="Print one JSON object instead of text.")]
RunPath = Positional[Path]
Page = Annotated[
    Path | None,
    arg(help="Write a page to print into this file, .pdf (pip install 'sotto[pdf]') or .html."),
]

# --- accounting ----------------------------------------------------------------------------------

TargetEpsilon = Annotated[float, arg(help="Largest epsilon that is allowed.")]
Delta = Annotated[
    float, arg(help="Delta of the guarantee. Choose it below 1 / (number of people).")
]
NoiseMultiplier = Annotated[
    float, arg(help="Standard deviation of the noise divided by the L2 sensitivity (clip norm).")
]
Releases = Annotated[int, arg(help="Number of releases that the same person takes part in.")]
SamplingRate = Annotated[float, arg(help="Probability that a person is in a batch.")]
Steps = Annotated[int, arg(help="Number of noisy steps.")]

# --- a teacher's answers -------------------------------------------------------------------------

Actions = Annotated[int, arg(help="Number of actions, which is the length of a policy row.")]
Concentration = Annotated[
    float, arg(help="Concentration k. Answers of a larger k are closer to the teacher's row.")
]
Floor = Annotated[
    float, arg(help="Least probability of an action after mixing with the uniform policy.")
]
Distance = Annotated[
    float,
    arg(
        help="L2 distance of neighbouring policy rows after mixing. For the mean of n teachers "
        "with disjoint people it is sqrt(2) (1 - actions * floor) / n."
    ),
]
Queries = Annotated[int, arg(help="Number of answers in total.")]
Threshold = Annotated[
    float | None,
    arg(help="Least probability in an answer of truncated-dirichlet; smaller than the floor."),
]

# --- runs and experiments ------------------------------------------------------------------------

Ledger = Annotated[
    str | None,
    arg(
        help="File or URL of the ledger if it is not in the directory. A ledger that only a file "
        "in the directory names is not opened."
    ),
]
Budget = Annotated[
    str | None,
    arg(
        help="File or URL of the budget that this shares with other products (sotto budget "
        "create). Give it again whenever releases are made."
    ),
]
Workers = Annotated[
    int | None, arg(help="Number of processes. The default is the number of processor cores.")
]
Ray = Annotated[
    str | None,
    arg(
        help="Ray cluster that does the work: HOST:PORT, auto for the one that this machine is "
        "part of, or local for a new one on this machine (pip install 'sotto[ray]')."
    ),
]
Seeds = Annotated[int, arg(help="Number of trainings of each method.")]
FirstSeed = Annotated[int, arg(help="First seed; the others follow it one by one.")]
