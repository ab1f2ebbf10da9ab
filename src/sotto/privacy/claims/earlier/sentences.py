"""Earlier words of the sentences that hold by their own condition.

A certificate of schema 2 names a sentence by identifier and version. One that names an earlier
version stays verified, and is printed in the words that it names.
"""

from sotto.privacy.claims import described, experts, ledgers, rewards, selection, shares, streams
from sotto.privacy.claims.claim import Claim
from sotto.privacy.claims.earlier.answers import OF_ANSWERS

_HANDED_OVER = "the code does not see from whose data rows were computed that are handed over"
_OLDER_FILE = "an earlier state of its file lacks the answers that were given since"

PRESENT: tuple[Claim, ...] = (
    streams.IN_GENERAL.before(
        1,
        "What is true of people in general: whatever is learnt from everybody else is learnt "
        "about each person too.",
    ),
    streams.OTHER_RUNS.before(
        1,
        "What other runs on the same people release: this certificate is about one run.",
    ),
    streams.TIMING.before(1, how="do not let an adversary time or share the machine"),
    streams.SIDE_CHANNELS.before(
        1,
        "What is learnt from timing, memory use, or by entering the machine.",
    ),
    ledgers.ASSUMED_SETTINGS.before(
        2,
        "The initial state, the settings and the schedule are chosen without looking at these "
        "people's data. Between releases the state changes by releases only. Who takes part in "
        "which stream is decided before the first release. Trying several settings on the same "
        "people is not paid for.",
    ),
    ledgers.ASSUMED_CANDIDATES.before(
        2,
        "The initial state, the candidates and the schedule are chosen without looking at these "
        "people's data. Between releases the state changes by releases only. Who takes part in "
        "which stream is decided before the first release. Trying other settings on the same "
        "people than the candidates is not paid for.",
    ),
    ledgers.SETTINGS.before(
        1,
        "The initial state, the settings and the schedule of a stream are chosen before it is "
        "opened, without looking at these people's data except through releases that this ledger "
        "was charged for. Between releases, the state changes only through releases. Epsilon does "
        "not cover trying several settings on the same people.",
    ),
    ledgers.PLANNED.before(
        1,
        "All streams in which the same people may take part are opened before the first of them is "
        "charged. A person who takes part in one of them pays for all of them.",
    ),
    ledgers.SHARED_BUDGET.before(
        1,
        "What people pay here is also counted in a budget that several products share, by the "
        "number of each person: nobody pays more than epsilon {epsilon} at delta {delta} in all of "
        "them. The numbers of this certificate are about this run alone.",
        "every charge is on disk in the shared budget before this ledger is charged, and is "
        "refused if it would exceed that (docs/privacy.md, section 8)",
        untrue="a person with two numbers, or charged in two copies of the budget, pays twice",
    ),
    ledgers.ENROLMENT.before(
        4,
        "An enrolment number always stands for the same person, and no person has two numbers. Who "
        "takes part does not depend on people's data, except through releases. Nobody goes on with "
        "a copy of this ledger, or with an earlier state of it: each copy counts its own releases "
        "only.",
        "the owner of the data assigns the numbers and keeps one ledger; the code refuses a ledger "
        "older than the files made from it, and cannot notice a copy of all files",
    ),
    ledgers.ENROLMENT.before(
        3,
        "An enrolment number always stands for the same person. Who takes part does not depend on "
        "people's data, except through releases. Nobody goes on with a copy of this ledger, or "
        "with an earlier state of it: each copy counts its own releases only.",
        "the owner of the data assigns the numbers and keeps one ledger; the code refuses a ledger "
        "older than the files made from it, and cannot notice a copy of all files",
    ),
    ledgers.ENROLMENT.before(
        2,
        "An enrolment number always stands for the same person. Who takes part does not depend on "
        "people's data, except through releases.",
        "the owner of the data assigns the numbers",
    ),
    ledgers.ENROLMENT.before(
        1,
        "An enrolment number is one person, always the same one, and who takes part does not "
        "depend on people's data other than through releases.",
        "whoever holds the data assigns the numbers",
    ),
    ledgers.COUNTED.before(
        2,
        "No person takes part more often than the streams allow, and no stream makes more releases "
        "than planned.",
    ),
    ledgers.COUNTED.before(
        1,
        "Nobody takes part more often than the streams say, and no release goes beyond its "
        "horizon.",
        "the ledger counts by person over all resumptions, and is charged before a release",
    ),
    streams.CONTRIBUTED.before(
        2,
        "A person's contribution depends only on that person's data, that person's random numbers "
        "and earlier releases. The server computes only from releases and public values. Steps "
        "named as not private are excepted.",
        untrue=_HANDED_OVER,
    ),
    streams.CONTRIBUTED.before(
        1,
        "What a person contributes depends on their own data, their own random numbers and "
        "earlier releases only; so does what the server makes of a release (except in steps named "
        "as not private).",
        "both functions are traced and read; a Python number computed from data before is "
        "something that tracing cannot see",
        untrue=_HANDED_OVER,
    ),
    streams.COMPILED.before(
        1,
        "What is computed for one person uses operations of JAX that were reviewed and treat "
        "every person alone. Random keys are threefry2x32. No setting of JAX or XLA that is not "
        "understood was in force when a stream was opened or charged.",
        "programs and settings are compared with lists of what was reviewed, and all else is "
        "refused; the programs are compiled for IEEE arithmetic, whatever XLA was told",
    ),
    streams.UNCHANGED.before(
        1,
        "Nobody rewrites JAX or sotto inside the process. XLA computes each person's row from "
        "that row alone, bit for bit, on the device at hand.",
        "use JAX and sotto as they were installed; the code notices only some changes, and rows "
        "were tried on CPUs",
    ),
    streams.ROUNDED.before(
        1,
        "Rounding gives nothing away (except in steps named as not private).",
    ),
    streams.ROUNDED_SUMS.before(
        1,
        "Rounding gives nothing away (except in steps named as not private).",
        "sums over a batch of people are float32 matrix products, rounded to integers on a public "
        "grid; the noise is larger by a bound on how far that moves neighbours apart, and "
        "everything after is exact",
    ),
    streams.LAW.before(
        1,
        "Noise is drawn by a sampler whose law on the released grid is the stated one; what its "
        "finite precision costs is charged.",
        "the samplers are proved in docs/privacy.md, section 7",
    ),
    streams.SCALED.before(
        1,
        "Noise was drawn as float64 numbers, scaled and rounded to the released grid. That these "
        "numbers stand for real ones there is assumed.",
        "open a new stream with a version that draws noise on the grid, which is proved",
    ),
    streams.SCALED_VALUES.before(
        1,
        "Rewards and functions of them against whoever computes the sampler's exact law: an "
        "earlier version released these values on a grid finer than its noise resolves, and more "
        "can be told from them than epsilon says.",
    ),
    streams.RANDOM.before(
        2,
        "The noise is as good as random.",
        "it is made of AES-128 in counter mode. The operating system's entropy keys every "
        "generator, through numpy's SeedSequence; each serves one stream, release or batch of "
        "answers and is forgotten. It holds as long as nobody breaks the cipher, that mixing, or "
        "the machine's entropy",
    ),
    streams.CORRELATED.before(
        1,
        "Noise is correlated over releases as the streams state, and new for every stream.",
        "what was drawn is mixed as stated and then forgotten, and a stream with such noise is "
        "never resumed",
    ),
    streams.CORRELATED.before(
        2,
        how="the code combines the drawn numbers as stated, then forgets them, and never resumes a "
        "stream with such noise",
    ),
    streams.ROUNDED_NOISE.before(
        1,
        "Noise that is correlated over releases is combined in integers. It is larger by a bound "
        "on how much further that rounding can move neighbours apart.",
        "the bound is proved in docs/privacy.md, section 4",
    ),
    streams.FAILURE.before(
        1,
        how="whoever waits for the result sees that it failed, also where they are not told why; "
        "nothing here pays for that",
    ),
    streams.SIMULATED.before(
        2,
        "The {what} are simulated: the claim is about simulated {what}, and learning curves, "
        "which have no noise, are for the experimenter.",
        "keep learning curves and other figures without noise apart from what is certified",
    ),
    *OF_ANSWERS,
    experts.IN_THE_CLEAR.before(
        1,
        "States, rewards and dynamics in released prefixes: they are in the clear.",
    ),
    experts.BEYOND_ACTIONS.before(
        1,
        "Anything about an expert that shows in states or dynamics, and not in their actions only.",
    ),
    experts.ONE_WORLD.before(
        1,
        "All experts act in one MDP, the world that prefixes are rolled out in: its states, "
        "rewards and dynamics do not depend on which expert acts, or on whether one is there.",
        "roll out in one simulator; experts who choose their cases, or resemble them, are not "
        "protected",
    ),
    experts.FRESH.before(
        1,
        "Rollouts are fresh: no log of anybody's is released, and the rollouts are used for "
        "nothing else.",
        "the door takes a world that it acts in, refuses logs, and returns only the prefixes",
    ),
    experts.ONE_ACTION.before(
        2,
        "One expert's action depends on that expert and the observation only, and there are at "
        "least as many experts as stated, or one fewer.",
        "the actions are traced and mapped over experts, and whoever is there is counted",
    ),
    experts.SILENT.before(
        1,
        "Nothing says why a prefix ended, or whom it followed.",
    ),
    rewards.OTHER_RUNS.before(
        1,
        "What other runs on the same rewards release: this certificate is about one run.",
    ),
    rewards.SETTINGS.before(
        2,
        "Nodes, settings and schedule, and whatever else counts as public, do not depend on "
        "rewards other than through releases. Trying several settings on the same rewards is not "
        "paid for.",
    ),
    rewards.KEPT.before(
        4,
        "Everything computed from rewards leaves only through releases. Exact values, parameters "
        "fitted to rewards, and the noise itself stay secret. Where transitions are protected, a "
        "number always stands for the reward of the same transition, no reward has two numbers, "
        "and what is handed over for a number was computed from that reward, public facts and "
        "releases alone. Nobody goes on with a copy of this ledger or of a released function's "
        "file, or with an earlier state of them: each copy counts its own releases only. A "
        "released function goes on with the same secret function.",
    ),
    rewards.KEPT.before(
        3,
        "Everything computed from rewards leaves only through releases. Exact values, parameters "
        "fitted to rewards, and the noise itself stay secret. Nobody goes on with a copy of this "
        "ledger or of a released function's file, or with an earlier state of them: each copy "
        "counts its own releases only. A released function goes on with the same secret function.",
    ),
    rewards.KEPT.before(
        2,
        "Everything computed from rewards leaves only through releases. Exact values, parameters "
        "fitted to rewards, and the noise itself stay secret.",
        "the owner of the rewards keeps them secret, and hands out only what was released",
    ),
    rewards.KEPT.before(
        1,
        "Nothing made of rewards leaves otherwise than through releases: no exact values, no "
        "parameters fitted to them, no noise.",
        "whoever holds the rewards keeps them, and hands out what was released",
    ),
    rewards.CHARGED.before(
        3,
        "No stream makes more releases than planned, and every release is charged before it "
        "leaves.",
        untrue="each copy of a ledger counts its own releases only",
    ),
    rewards.CHARGED.before(
        2,
        "No release goes beyond its horizon, and each is charged before it leaves.",
        "the ledger counts, and is synced to disk before a release is made",
    ),
    rewards.ANSWERS.before(
        2,
        "A released function always gives the same answer at the same point.",
        untrue=_OLDER_FILE,
    ),
    rewards.ANSWERS.before(
        1,
        "A released function answers the same point always the same.",
        "it keeps its answers; where it has a file they are on disk before they leave",
        untrue=_OLDER_FILE,
    ),
    rewards.ROUNDED.before(
        2,
        "Rounding gives nothing away (except in steps named as not private).",
        "what is released lies on a public grid, whose spacing follows from public numbers; the "
        "noise is larger by a bound on how much further rounding can move neighbours apart",
    ),
    rewards.CLIPPED.before(
        1,
        "No secret value is larger in magnitude than 2^17 times the stated sensitivity. What is "
        "larger may be clipped.",
        "clipping a function can move neighbours further apart than its stated sensitivity",
    ),
    shares.SERVER.before(
        1,
        "Each person's contribution, against a server that follows the protocol and tries to learn "
        "from all it sees: masked contributions, the sum of each release, and which devices took "
        "part or dropped out. Up to {colluding} devices of each release may tell it their share of "
        "the noise. Epsilon is against this observer.",
        untrue="devices that were asked in the round and are in no sum count, too, because they "
        "hold shares of other devices' secrets",
    ),
    shares.EVERYBODY.before(
        1,
        "Each person's contribution, against everybody else, who sees the released policies only. "
        "An observer whom no device tells its share of the noise meets noise multiplier "
        "{multiplier} or more.",
        untrue="a device may add no noise, as one of those that collude, and then the multiplier "
        "is that of the statement",
    ),
    shares.HONEST_DEVICES.before(
        1,
        "The device of the person who is protected runs this code. So do {secret} or more devices "
        "in every opened sum, each of which adds its share of the noise and keeps it secret.",
        "a device that adds no noise counts as one that colludes; choose that number with care, "
        "since nobody can check it",
    ),
    shares.MASKS.before(
        1,
        "Masked contributions show nothing but their sum, except with a probability below 2^-39 in "
        "each round, which delta leaves out. Whether a device drops out does not depend on the "
        "data that is protected.",
        untrue="devices that were asked in the round, in the sum or not, can together show a "
        "single contribution if more of them collude than the certificate counts",
    ),
    selection.BEST_ONLY.before(
        1,
        "Of a selection only the best try leaves: neither how many tries were made, nor anything "
        "of the others.",
        "their number is drawn in secret; the others are neither returned, logged nor stored",
    ),
    selection.HOW_LONG.before(
        2,
        "How long the selection ran, and what it used, stays secret. What is selected is made "
        "public at a time fixed before, as a copy made then.",
        "whoever learns how many tries there were learns more than epsilon allows; keep the "
        "process, its compilation cache and the machine's logs to yourself",
    ),
    described.PERSON.before(
        1,
        "A person with up to {records} records is protected by group privacy, with the epsilon "
        "that the certificate states for a person: if one record costs (epsilon, delta), then g "
        "records cost (g epsilon, delta (e^(g epsilon) - 1) / (e^epsilon - 1)). The smaller delta "
        "of one record is chosen such that the delta of the person is that of the certificate.",
        untrue="this epsilon holds, but group privacy gives it only with Poisson sampling; "
        "otherwise all of these records may be in one step, whose noise then counts less",
    ),
)
"""Earlier words of the sentences that hold by their own condition."""
