"""Sentences about releases of rewards and of functions of them (docs/privacy.md, section 13)."""

from sotto.privacy.claims.claim import Claim, about_rewards, both, some
from sotto.privacy.claims.streams import drawn_on_grid, has_noise, through_functions
from sotto.privacy.statements import UNBOUNDED_DRAWS, StreamStatement


def _values_on_grid(stream: StreamStatement) -> bool:
    """Values or a function, with noise that is drawn on the grid of what is released."""
    return through_functions(stream) and drawn_on_grid(stream) and not stream.gaps


OTHER_RUNS = Claim(
    "rewards.other-runs",
    "does-not-protect",
    "What other runs on the same rewards release: this certificate is about one run.",
    holds=about_rewards,
)
SETTINGS = Claim(
    "rewards.settings",
    "user",
    "Nodes, settings and schedule, and whatever else counts as public, do not depend on rewards "
    "other than through releases. Trying several settings on the same rewards is not paid for.",
    "choose them on public rewards",
    version=2,
    holds=about_rewards,
)
KEPT = Claim(
    "rewards.kept",
    "user",
    "Nothing made of rewards leaves otherwise than through releases: no exact values, no "
    "parameters fitted to them, no noise.",
    "whoever holds the rewards keeps them, and hands out what was released",
    holds=about_rewards,
)
# ledger.py, functions.py
CHARGED = Claim(
    "ledger.charged",
    "code",
    "No release goes beyond its horizon, and each is charged before it leaves.",
    "the ledger counts, and is synced to disk before a release is made",
    version=2,
    holds=about_rewards,
)
# functions.py, streams.py
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
# released.py
ANSWERS = Claim(
    "functions.one-answer",
    "code",
    "A released function answers the same point always the same.",
    "it keeps its answers; where it has a file they are on disk before they leave",
    holds=some(lambda one: one.dimensions.get("values") == UNBOUNDED_DRAWS),
)
# functions.py, released.py
ROUNDED = Claim(
    "functions.rounded",
    "code",
    "Rounding gives nothing away (except in steps named as not private).",
    "what is released lies on a public grid, whose spacing follows from public numbers; the noise "
    "is larger by a bound on how much further rounding can move neighbours apart",
    version=2,
    holds=some(_values_on_grid),
)
CLIPPED = Claim(
    "functions.clipped",
    "user",
    "No secret value is larger in magnitude than 2^17 times the stated sensitivity. What is larger "
    "may be clipped.",
    "clipping a function can move neighbours further apart than its stated sensitivity",
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
# algorithms/dp_sgd_dqn.py
ZEROED = Claim(
    "dp-sgd.zeroed",
    "protects",
    "The reward of each transition. Epsilon and delta are stated for a transition that is there or "
    "zeroed out. For one reward against another, epsilon is twice as large, and delta is "
    "(1 + e^epsilon) times as large.",
    version=2,
)
# algorithms/functional_q.py
VISITS = Claim(
    "functional-q.visits",
    "does-not-protect",
    "States, actions, how often each node was visited, and the public range of rewards.",
)
CURVE = Claim(
    "functional-q.curve",
    "does-not-protect",
    "Returns on the learning curve, which are of a simulator and for the experimenter.",
)
REWARD_FREE = Claim(
    "functional-q.reward-free",
    "code",
    "Which states are visited and which actions are taken depends on rewards through releases "
    "only, and the world's next state does not depend on rewards.",
    "steps are collected in an environment that has no rewards; they are evaluated where they are "
    "released",
)
ONE_FUNCTION = Claim(
    "functional-q.one-function",
    "user",
    "Rewards are those of one function, and neighbouring ones are within the radius of it "
    "everywhere.",
    "choose the radius that the difference worth hiding has",
)
# functions.py
SENSITIVITY = Claim(
    "functions.sensitivity",
    "user",
    "What neighbours release in {name} differs by at most {bound} in the {norm}: {because}.",
    "it is computed from public numbers; whoever computes the values answers for the rest",
)

BROUGHT = (
    ONE_REWARD,
    LOGGED_FUNCTION,
    WHOLE_FUNCTION,
    ZEROED,
    VISITS,
    CURVE,
    REWARD_FREE,
    ONE_FUNCTION,
    SENSITIVITY,
)
