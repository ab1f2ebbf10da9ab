"""Earlier words of the sentences that statements of streams bring."""

from sotto.privacy.claims import experts, language, logs, rewards, streams
from sotto.privacy.claims.claim import Claim

_OTHER_LOGS = "the same people may be in another log, or in another import of this one"

OF_SCHEMA_1: tuple[Claim, ...] = (
    Claim(
        "dppg.policies",
        "protects",
        "every policy released during and after training, their averages, and anything computed "
        "from them",
    ),
    Claim("dppg.parts", "protects", "{what}, as far as they are released"),
    Claim(
        "ucb.counters",
        "protects",
        "the counters, every plan made of them, and what is recommended to anybody else",
    ),
    Claim(
        "dp-sgd.zeroed",
        "protects",
        "The reward of each transition: replacing it costs what zeroing a transition out costs "
        "twice.",
        untrue="delta is (1 + e^epsilon) times as large, and not twice",
    ),
    Claim(
        "votes.experts-policy",
        "protects",
        "each expert's policy; what they logged is not read",
        untrue="where a bar on returns weighs the votes, the returns that experts logged are read",
    ),
    Claim(
        "votes.clones-log",
        "protects",
        "each expert's whole log, of which their clone is a function",
    ),
    Claim(
        "votes.released",
        "protects",
        "every noisy vote of {kind}, the states asked, and every label, student and trajectory "
        "made of them",
        untrue="the votes are public: they are what protects, and are not protected",
    ),
    Claim(
        "votes.own-clones",
        "user",
        "Each clone, and the weight of its vote, is a function of the log of its own expert, of "
        "public keys and of public settings.",
        "algorithms.clones fits them so; its settings must not come from the logs",
    ),
    Claim(
        "dp-sgd.slots",
        "does-not-protect",
        "How many slots there are for experts; the environment, its states and its rewards.",
    ),
)
"""Words that statements of streams brought before certificates had schema 2."""

OF_SCHEMA_2: tuple[Claim, ...] = (
    streams.POOL.before(
        1,
        "The data that a pool hands out for one person are made of that person's data and random "
        "numbers only, and it keeps to itself whom it was asked for.",
        "whoever writes the pool reads one person's rows for one person",
    ),
    streams.POLICIES.before(
        2,
        "What each user contributes, against whoever sees every policy released during and after "
        "training, their averages, and anything computed from them.",
    ),
    streams.PARTS.before(
        2,
        "What each user contributes, against whoever also sees noisy sums that tell {what}.",
    ),
    streams.PATTERNS.before(
        1,
        "what the released policy recommends about people in general: a pattern that many users "
        "share is what is learned",
    ),
    streams.OWN_TRAJECTORY.before(
        1,
        "a user against whoever sees their own trajectory while it is collected",
    ),
    streams.FIRST_POLICY.before(1, how="the user who chooses the file knows where it comes from"),
    language.PUBLIC_MODEL.before(
        1, how="the user who chooses the files knows where they come from"
    ),
    streams.NO_MEMORY.before(
        1,
        "A copy of the environment remembers nothing of the users who played in it before: what "
        "it gives after a reset is made of that reset's seed, and of its own user.",
        "environments in Gymnasium are not traced; of wrappers, those that are known to keep "
        "running statistics are refused",
    ),
    streams.UNSEEN.before(
        1,
        "Nothing that the environment says or raises leaves its processes.",
        "their output goes nowhere, and every failure is one fixed sentence",
    ),
    streams.OWN_OUTPUT.before(
        1,
        "The environment writes about people nowhere but to its own output, and its spaces and "
        "time limit are public.",
        "whoever writes the environment keeps no files, logs or connections that others can see",
    ),
    streams.COUNTERS.before(
        2,
        "What each user contributes, against whoever sees the counters, every plan made of them, "
        "and what is recommended to anybody else.",
    ),
    streams.LOCAL_COUNTERS.before(
        1,
        "each user's counters against whoever collects them: noise of their own is on them, and "
        "may be added before they leave the user",
    ),
    streams.OWN_ACTIONS.before(
        1,
        "the actions recommended to the user themselves, against whoever sees their episode",
    ),
    streams.IN_COMMON.before(
        1,
        "what episodes have in common: it is what is learned",
    ),
    experts.EXPERTS_POLICY.before(
        2,
        "Each expert's policy, and whatever of theirs the weight of their vote was made of, such "
        "as the returns they logged.",
    ),
    experts.CLONES_LOG.before(
        2,
        "Each expert's whole log: their clone, and the weight of its vote, are made of it.",
    ),
    experts.RELEASED_VOTES.before(
        2,
        "The noisy votes of {kind}, the states asked, and every label, student and trajectory "
        "made of them: they are public.",
    ),
    experts.OWN_CLONES.before(
        2,
        "Each clone, and the weight of its vote, is made of the log of its own expert, of public "
        "random numbers and of settings.",
        "clones are fitted one log at a time; settings are public, as is said of all settings",
    ),
    experts.SLOTS.before(
        2,
        "How many slots there are for experts, and what is public of the environment: its "
        "dynamics and its rewards.",
    ),
    experts.OWN_LOGS.before(
        1,
        "An expert's log is their own: no other expert's log depends on it, and nothing in it was "
        "used for another release.",
        "whoever collects the logs keeps experts apart, and keeps what was rolled out for "
        "prefixes out of them",
    ),
    rewards.CURVE.before(
        1,
        "Returns on the learning curve, which are of a simulator and for the experimenter.",
    ),
    rewards.REWARD_FREE.before(
        1,
        "Which states are visited and which actions are taken depends on rewards through releases "
        "only, and the world's next state does not depend on rewards.",
        "steps are collected in an environment that has no rewards; they are evaluated where they "
        "are released",
    ),
    rewards.ONE_FUNCTION.before(
        1,
        "Rewards are those of one function, and neighbouring ones are within the radius of it "
        "everywhere.",
        "choose the radius that the difference worth hiding has",
    ),
    rewards.SENSITIVITY.before(
        1,
        "What neighbours release in {name} differs by at most {bound} in the {norm}: {because}.",
        "it is computed from public numbers; whoever computes the values answers for the rest",
    ),
    logs.CHOSEN.before(
        2,
        "Policies, estimator, model of returns, clip of the weights and bounds of returns were "
        "chosen without this log, or from releases that were paid for. A policy or a model that "
        "was learnt from this log elsewhere has a certificate whose cost adds to this one.",
        untrue=_OTHER_LOGS,
    ),
    logs.CHOSEN.before(
        1,
        "Policies, estimator, clip of the weights and bounds of returns were chosen without this "
        "log, or from releases that were paid for. A policy that was learnt from this log "
        "elsewhere has a certificate whose cost adds to this one.",
        untrue=_OTHER_LOGS,
    ),
    logs.OWN_OFFERS.before(
        1,
        "A person, against somebody who sees what this person was offered or chose. A person's own "
        "ratings decide what that person chooses next, and nothing is released about it.",
    ),
    language.OWN_COMPLETIONS.before(
        1,
        "What a person rates depends on that person's prompts, on random numbers, and on earlier "
        "releases. All ratings of one person are under one name.",
        "each completion is generated from its own prompt and random key; a file of ratings is "
        "grouped by the person that it names",
        untrue="sotto did not generate the completions in a file of ratings; whoever made the file "
        "knows how they were made",
    ),
)
"""Earlier words that certificates of schema 2 name, a version each."""
