"""Sentences about releases of rewards and of functions of them (docs/privacy.md, section 13)."""

from collections.abc import Iterable, Sequence

from sotto.privacy.claims.claim import Claim, LedgerFacts
from sotto.privacy.claims.conditions import (
    about_rewards,
    both,
    drawn_on_grid,
    has_noise,
    some,
    through_functions,
)
from sotto.privacy.statements import UNBOUNDED_DRAWS, StreamStatement
from sotto.privacy.units import Adjacency


def _values_on_grid(stream: StreamStatement) -> bool:
    """Whether values or a function are released, with noise drawn on their grid."""
    return through_functions(stream) and drawn_on_grid(stream) and not stream.gaps


def _several_assumed(facts: LedgerFacts) -> bool:
    """Whether releases may have decided which later streams were opened, as earlier versions let.

    It is about several charged streams: one stream costs what it costs to its horizon.
    """
    many = sum(one.is_shared for one in facts.streams)
    return facts.sharing == "assumed" and many > 1


OTHER_RUNS = Claim(
    "rewards.other-runs",
    "does-not-protect",
    "Releases of other runs on the same rewards. This certificate is about one run.",
    version=2,
    holds=about_rewards,
)
SETTINGS = Claim(
    "rewards.settings",
    "user",
    "Nodes, settings, the schedule and everything else that counts as public do not depend on "
    "rewards, except through releases. Epsilon does not cover trying several settings on the same "
    "rewards.",
    "choose them on public rewards",
    version=3,
    holds=about_rewards,
)
# ledger/spending.py; in ledgers of this version the code enforces an order instead
ASSUMED_STREAMS = Claim(
    "rewards.streams",
    "user",
    "All streams of releases about the same rewards are decided before the first release.",
    "an earlier version created this ledger, and let a stream be opened by looking at releases; "
    "create a new ledger, which refuses that",
    holds=both(about_rewards, _several_assumed),
)
KEPT = Claim(
    "rewards.kept",
    "user",
    "Everything computed from rewards leaves only through releases. Exact values, parameters "
    "fitted to rewards, and the noise itself stay secret. Where transitions are protected, a "
    "number always stands for the reward of the same transition, no reward has two numbers, and "
    "what is handed over for a number was computed from that reward, public facts and releases "
    "alone. Nobody goes on with a copy of this "
    "ledger or of a released function's file, or with an earlier state of them: each copy counts "
    "its own releases only. A released function goes on with the same secret function, "
    "whose value at a point is the same whenever and with whatever other points it is asked.",
    "the owner of the rewards keeps them secret, hands out only what was released, and keeps one "
    "ledger and one file; the code refuses a ledger older than the files made from it, and a file "
    "that lacks the entry which the file beside it names",
    version=5,
    holds=about_rewards,
)
# ledger/ledger.py, release/functions.py
CHARGED = Claim(
    "ledger.charged",
    "code",
    "In this ledger, no stream makes more releases than planned, and every release is charged "
    "before it leaves.",
    "the ledger counts the releases, and each charge is on disk before the release is made",
    version=4,
    holds=about_rewards,
)
# release/functions.py, release/stream.py
FRESH = Claim(
    "noise.fresh",
    "code",
    "Every release has fresh noise.",
    "a number that was drawn serves one release, and is forgotten",
    version=2,
    holds=both(
        about_rewards,
        has_noise,
        some(lambda one: one.correlation.kind == "independent" and not one.gaps),
    ),
)
# release/released.py
ANSWERS = Claim(
    "functions.one-answer",
    "code",
    "As long as nobody goes on with a copy of its file, or with an earlier state of it, a released "
    "function always gives the same answer at the same point.",
    "it stores its answers; where it has a file, an answer is on disk before it leaves",
    version=3,
    holds=some(lambda one: one.dimensions.get("values") == UNBOUNDED_DRAWS),
)
# release/functions.py, release/released.py
ROUNDED = Claim(
    "functions.rounded",
    "code",
    "Rounding reveals nothing about the data, except in steps named as not private.",
    "released values lie on a public grid, whose spacing follows from public numbers; the noise "
    "is larger by a bound on how much further rounding can move neighbouring inputs apart",
    version=3,
    holds=some(_values_on_grid),
)
CLIPPED = Claim(
    "functions.clipped",
    "user",
    "No secret value is larger in magnitude than 2^17 times the stated sensitivity. A larger "
    "value may be clipped.",
    "clipping a function can move neighbouring inputs further apart than the stated sensitivity",
    version=2,
    holds=some(_values_on_grid),
)

# --- what a stream's statement brings ------------------------------------------------------------

ONE_REWARD = Claim(
    "rewards.one",
    "protects",
    "The reward of each transition, anywhere in [{low}, {high}].",
)
LOGGED_FUNCTION = Claim(
    "rewards.logged-function",
    "protects",
    "The reward function, up to any change of at most {radius} everywhere.",
)
WHOLE_FUNCTION = Claim(
    "rewards.whole-function",
    "protects",
    "The whole reward function, against every other within {radius} of it ({share} of the public "
    "range [{low}, {high}]).",
)


PRINTED = 1e-5
"""Relative error of a number that a sentence says with six digits."""


def exactly(number: float) -> str:
    """Returns a number in a short text that is exact, such as "1" or "0.05", for a sentence."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


def _numbers_in(sentences: Iterable[str], *claims: Claim) -> list[dict[str, str]]:
    """Returns the numbers of every sentence on protection that is one of these claims."""
    lines = tuple(sentences)
    found = (claim.match("protects", line, "") for claim in claims for line in lines)
    return [numbers for numbers in found if numbers is not None]


def radii_in(sentences: Iterable[str]) -> frozenset[str]:
    """Returns every radius that these sentences of a statement say."""
    return frozenset(
        said["radius"] for said in _numbers_in(sentences, LOGGED_FUNCTION, WHOLE_FUNCTION)
    )


def ranges_in(sentences: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Returns every range of rewards that these sentences of a statement say: (low, high)."""
    found = _numbers_in(sentences, ONE_REWARD, WHOLE_FUNCTION)
    return frozenset((said["low"], said["high"]) for said in found)


def require_one_radius(sentences: Iterable[str]) -> str:
    """Returns the radius that these sentences say.

    Raises:
        ValueError: they say none, or several.
    """
    found = radii_in(sentences)
    if len(found) != 1:
        raise ValueError(
            "the certificate says within which radius epsilon holds: give in `protects` one "
            "sentence with it, such as LOGGED_FUNCTION of sotto.privacy.claims.rewards"
        )
    return min(found)


def require_hidden(change: float, adjacency: Adjacency, sentences: Sequence[str]) -> None:
    """Refuses sentences that promise to hide a larger change of a reward than noise is made for.

    Args:
        change: largest change of a reward that the noise is made for.
        adjacency: of the unit, a reward function within a radius or one reward.
        sentences: of a statement, on what it protects.

    Raises:
        ValueError: they promise more, or do not say one radius or one range of a reward.
    """
    one, logged, whole = (
        [
            {name: float(text) for name, text in said.items()}
            for said in _numbers_in(sentences, claim)
        ]
        for claim in (ONE_REWARD, LOGGED_FUNCTION, WHOLE_FUNCTION)
    )
    if adjacency is Adjacency.WITHIN_RADIUS and not one:
        require_one_radius(sentences)
        within = (min(said["radius"], said["high"] - said["low"]) for said in whole)
        promised = max([*within, *(said["radius"] for said in logged)])
    elif adjacency is not Adjacency.WITHIN_RADIUS and len(one) == 1 and not logged and not whole:
        low, high = one[0]["low"], one[0]["high"]
        to_zero = (abs(low), abs(high)) if adjacency is Adjacency.ZERO_OUT else ()
        promised = max([high - low, *to_zero])
    else:
        raise ValueError(
            "the certificate says within which radius the reward function is protected, or in "
            "which range one reward: give in `protects` one sentence with it and none of the "
            "other kind, LOGGED_FUNCTION or ONE_REWARD of sotto.privacy.claims.rewards"
        )
    if promised > change:
        raise ValueError(
            f"`protects` promises to hide a change of {promised:g} of a reward, and the noise is "
            f"made for {change:g}"
        )


# experiments/wang2019/dp_sgd.py
ZEROED = Claim(
    "dp-sgd.zeroed",
    "protects",
    "The reward of each transition. Epsilon and delta are stated for a transition that is there or "
    "zeroed out. For one reward against another, epsilon is twice as large, and delta is "
    "(1 + e^epsilon) times as large.",
    version=2,
)
# algorithms/functional_q/functions.py
VISITS = Claim(
    "functional-q.visits",
    "does-not-protect",
    "States, actions, how often each node was visited, and the public range of rewards.",
)
CURVE = Claim(
    "functional-q.curve",
    "does-not-protect",
    "Returns on the learning curve. They come from a simulator and are for the experimenter only.",
    version=2,
)
REWARD_FREE = Claim(
    "functional-q.reward-free",
    "code",
    "The visited states and the chosen actions depend on rewards only through releases. The next "
    "state of the environment does not depend on rewards.",
    "steps are collected in an environment without rewards; the rewards are computed where they "
    "are released",
    version=2,
)
ONE_FUNCTION = Claim(
    "functional-q.one-function",
    "user",
    "All rewards come from one function. Neighbouring reward functions are within the radius of "
    "each other everywhere.",
    "choose a radius as large as the difference that you want to hide",
    version=2,
)
# release/functions.py
SENSITIVITY = Claim(
    "functions.sensitivity",
    "user",
    "In {name}, the values released for neighbouring inputs differ by at most {bound} in the "
    "{norm}: {because}.",
    "the bound is computed from public numbers; the author of the values makes sure that it holds "
    "for them",
    version=2,
)
# release/choices.py
NOISY_MAXIMUM = Claim(
    "choice.noisy-maximum",
    "code",
    "Of the candidates only the one whose value plus noise is largest is released. Between "
    "neighbouring inputs the difference of two values moves by at most the stated sensitivity.",
    "values are public weights times secret numbers, which are clipped to their range; the bound "
    "is computed from the weights. Noise is exact, and rounding to the public grid is paid for",
)
# algorithms/functional_q/choice.py
CANDIDATES = Claim(
    "functional-q.candidates",
    "code",
    "The candidates and their weights do not depend on rewards.",
    "they are planned for random reward functions, from the visited states and the public seed",
)
