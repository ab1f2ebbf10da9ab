"""Sentences about experts: votes, stable prefixes, DP-SGD (docs/privacy.md, sections 14, 15)."""

from sotto.privacy.claims.claim import Claim
from sotto.privacy.claims.conditions import has_prefixes

# --- stable prefixes: release/prefixes.py, mechanisms/stable_prefixes.py -------------------------

IN_THE_CLEAR = Claim(
    "prefixes.in-the-clear",
    "does-not-protect",
    "States, rewards and dynamics in released prefixes. They are released without noise.",
    version=2,
    holds=has_prefixes,
)
BEYOND_ACTIONS = Claim(
    "prefixes.beyond-actions",
    "does-not-protect",
    "Anything about an expert that shows in states or dynamics, and not only in the expert's "
    "actions.",
    version=2,
    holds=has_prefixes,
)
ONE_WORLD = Claim(
    "prefixes.one-world",
    "user",
    "All experts act in the same MDP, in which the prefixes are rolled out. Its states, rewards "
    "and dynamics do not depend on which expert acts, or on whether an expert takes part.",
    "roll out in one simulator; experts who choose their cases, or whose cases resemble them, are "
    "not protected",
    version=2,
    holds=has_prefixes,
)
FRESH = Claim(
    "prefixes.fresh",
    "code",
    "All rollouts are fresh. No expert's log is released, and the rollouts are used for nothing "
    "else.",
    "the code makes the rollouts itself in the environment that it is given, refuses logs, and "
    "returns only the prefixes",
    version=2,
    holds=has_prefixes,
)
ONE_ACTION = Claim(
    "prefixes.one-action",
    "code",
    "An expert's action depends only on that expert and on the observation. There are at least as "
    "many experts as stated, or one fewer.",
    "the code traces the actions, maps them over experts, and counts the experts who are present",
    version=3,
    holds=has_prefixes,
)
OWN_DATA = Claim(
    "prefixes.own-data",
    "user",
    "Each expert, or clone, was trained on their own data alone, and who takes part is public.",
    "keep experts' data apart when they are trained",
    holds=has_prefixes,
)
SILENT = Claim(
    "prefixes.silent",
    "code",
    "No output states why a prefix ended, or which expert it followed.",
    "coins, queries, noise and drawn experts are not returned, logged or stored",
    version=2,
    holds=has_prefixes,
)

# --- what a stream's statement brings ------------------------------------------------------------

# algorithms/expert_offline/prefixes.py
PREFIXES = Claim(
    "prefixes.policy",
    "protects",
    "What each expert would do, as far as it shows in actions, against an observer who sees the "
    "released prefixes, the learnt policies, and everything computed from them.",
)
# algorithms/expert_offline/voting.py
EXPERTS_POLICY = Claim(
    "votes.experts-policy",
    "protects",
    "Each expert's policy, and the data of that expert from which the weight of their vote was "
    "computed, such as logged returns.",
    version=3,
)
CLONES_LOG = Claim(
    "votes.clones-log",
    "protects",
    "Each expert's whole log, from which the expert's clone and the weight of its vote are "
    "computed.",
    version=3,
)
RELEASED_VOTES = Claim(
    "votes.released",
    "does-not-protect",
    "The noisy votes of {kind}, the states asked, and every label, student and trajectory made "
    "from them. All of these are public.",
    version=3,
)
HOW_MANY = Claim("votes.how-many", "does-not-protect", "how many experts there are")
MOST_EXPERTS = Claim(
    "votes.most-experts",
    "does-not-protect",
    "what most experts would do, which is what is learned",
)
OWN_EXPERTS = Claim(
    "votes.own-experts",
    "user",
    "Each expert's policy, and the weight of its vote, were made without the other experts, and "
    "without anything computed from them.",
    "train each expert on its own; what experts start from or share must be public",
)
OWN_CLONES = Claim(
    "votes.own-clones",
    "code",
    "Each clone, and the weight of its vote, depends only on the log of its own expert, on public "
    "random numbers and on settings.",
    "the code fits clones one log at a time; settings are public",
    version=3,
)
PUBLIC_WORLD = Claim(
    "votes.public-world",
    "user",
    "The states at which votes are asked, and the returns by which students are chosen, come from "
    "a simulator, or a box of states, that was made without these experts' data.",
    "make it from public knowledge or from other data; a simulator that was fitted to these "
    "experts' logs tells about them",
)
# algorithms/expert_offline/dp_sgd.py
LOGGED = Claim(
    "dp-sgd.logged",
    "protects",
    "Everything that one expert logged: states, actions and rewards.",
)
SLOTS = Claim(
    "dp-sgd.slots",
    "does-not-protect",
    "The number of slots for experts, and the public facts about the environment, which are its "
    "dynamics and its rewards.",
    version=3,
)
OWN_LOGS = Claim(
    "dp-sgd.own-logs",
    "user",
    "Each expert's log depends on no other expert's log, and nothing in it was used for another "
    "release.",
    "keep the experts apart when their logs are collected, and keep rollouts for prefixes out of "
    "the logs",
    version=2,
)
