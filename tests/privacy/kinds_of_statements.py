"""Statements of every kind that the project's algorithms write, for tests of certificates.

Those of earlier versions are as they were written; `attacks/certificates_of_schema_1.json` also
holds what was said of them then.
"""

import json
from pathlib import Path
from typing import Any

from small import answers

from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    ObservationDistance,
    PolicyDistance,
)
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.claims import LedgerFacts
from sotto.privacy.claims import experts as of_experts
from sotto.privacy.claims import language as of_language
from sotto.privacy.claims import logs as of_logs
from sotto.privacy.claims import people as of_people
from sotto.privacy.claims import rewards as of_rewards
from sotto.privacy.claims import streams as of_streams
from sotto.privacy.claims.claim import Claim
from sotto.privacy.mechanisms.noisy_max import NoisyMax
from sotto.privacy.mechanisms.policies import Dirichlet, TruncatedDirichlet
from sotto.privacy.statements import (
    Correlation,
    NoiseShares,
    Once,
    Part,
    Poisson,
    Returning,
    Selection,
    ShareOfNoise,
    StreamStatement,
)
from sotto.privacy.units import EXPERT, TRANSITION, Unit

SCHEMA_1: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "attacks" / "certificates_of_schema_1.json").read_text()
)

PERSON = Unit(kind="trajectory", adjacency="zero-out")


def facts_of(words: dict[str, Any]) -> LedgerFacts:
    """The statements that an earlier certificate was about."""
    streams = tuple(map(StreamStatement.model_validate, words["streams"]))
    answers = words["answers"]
    return LedgerFacts(streams, answers and AnswerStatement.model_validate(answers))


def stream(**changes: Any) -> StreamStatement:
    """One Gaussian stream about people who take part once, and what is changed in it."""
    fields: dict[str, Any] = {
        "name": "updates",
        "unit": PERSON,
        "participation": Once(),
        "parts": {"policy": Part(clip_norm=1.0, noise_multiplier=3.0)},
        "dimensions": {"policy": 10},
        "divisor": 1.0,
        "horizon": 4,
        "population": "real",
        "sampler_delta": 1e-30,
    }
    fields |= changes
    fields["dimensions"] = changes.get("dimensions", dict.fromkeys(fields["parts"], 10))
    return StreamStatement(**fields)


def live_people(*seen: Claim) -> LedgerFacts:
    """A campaign whose operator sees what these sentences say."""
    updates = stream(
        name="DPPG policy update",
        noise_law="on-grid",
        protects=(of_people.JOINT(), of_streams.POLICIES()),
        does_not_protect=(
            of_streams.PATTERNS(),
            *(one() for one in seen),
            of_people.PARTICIPATION(),
        ),
        assumptions=tuple(one.assumption() for one in (of_people.OWN_WORLD, of_people.ONE_TOKEN)),
    )
    return LedgerFacts((updates,), settings_checked=True)


def met_through_gymnasium(who: Claim) -> LedgerFacts:
    """Real people whom a Gymnasium environment meets, with the sentence on who they are."""
    environment = (of_streams.NO_MEMORY, of_streams.UNSEEN, of_streams.OWN_OUTPUT, who)
    return LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                protects=(of_streams.POLICIES(),),
                does_not_protect=(of_streams.PATTERNS(), of_streams.OWN_TRAJECTORY()),
                assumptions=tuple(
                    one.assumption() for one in (of_streams.FIRST_POLICY, *environment)
                ),
            ),
        ),
        settings_checked=True,
    )


def teacher(**changes: Any) -> LedgerFacts:
    """A teacher of Gaussian answers about shards of people."""
    return LedgerFacts(answers=answers(**{"name": "kartini", "population": "real"} | changes))


_LOGS = {
    "unit": EXPERT,
    "protects": (of_experts.LOGGED(),),
    "does_not_protect": (of_experts.SLOTS(),),
    "assumptions": (of_experts.OWN_LOGS.assumption(), of_streams.POOL.assumption()),
}
_FUNCTION = {
    "unit": TRANSITION,
    "participation": Returning(max_participations=4, min_separation=1),
    "parts": {"values": Part(clip_norm=1.0, noise_multiplier=3.0)},
    "assumptions": (
        of_rewards.SENSITIVITY.assumption(
            name="'Q'", bound="2", norm="Euclidean norm", because="why"
        ),
    ),
}

PREFIXES = StreamStatement.model_validate(
    json.loads(SCHEMA_1["certificates"]["prefixes"]["entries"][1][3])["statement"]
)

_AGAIN = Returning(max_participations=2, min_separation=2)

KINDS: dict[str, LedgerFacts] = {
    **{f"{name} of schema 1": facts_of(words) for name, words in SCHEMA_1["words"].items()},
    "nothing charged": LedgerFacts(),
    "people of a plan": LedgerFacts((stream(participation=_AGAIN),), sharing="planned"),
    "people of an adaptive ledger": LedgerFacts(
        (stream(participation=_AGAIN),), sharing="adaptive"
    ),
    "people who share a budget": LedgerFacts((stream(),), sharing="planned", limits=(2.0, 1e-6)),
    "a selection of a plan": LedgerFacts(
        (stream(selection=Selection(mean=2.0, candidates=2)),), sharing="planned"
    ),
    "people": LedgerFacts((stream(protects=(of_streams.POLICIES(),)),)),
    "returning, correlated": LedgerFacts(
        (
            stream(
                participation=Returning(max_participations=2, min_separation=2),
                correlation=Correlation(kind="prefix-sum"),
                assumptions=(of_streams.NO_MEMORY.assumption(),),
            ),
        )
    ),
    "noise in shares": LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                shares=NoiseShares(
                    bits=16,
                    slots=20,
                    promised=12,
                    colluding=2,
                    parts={"policy": ShareOfNoise(grid=0.01, variance=1e4)},
                ),
            ),
        )
    ),
    "a fixed seed": LedgerFacts((stream(entropy="fixed-seed"),)),
    "counters": LedgerFacts(
        (
            stream(
                population="simulated",
                correlation=Correlation(kind="binary-tree"),
                protects=(of_streams.COUNTERS(), of_streams.LOCAL_COUNTERS()),
                does_not_protect=(of_streams.OWN_ACTIONS(), of_streams.IN_COMMON()),
            ),
        )
    ),
    "a selection": LedgerFacts((stream(selection={"mean": 3.0, "candidates": 4}),)),
    "DP-SGD over experts, sampled": LedgerFacts(
        (
            stream(
                participation=Poisson(sampling_rate=0.1, population=100),
                sum_rounding=1e-4,
                **_LOGS,
            ),
        )
    ),
    "DP-SGD on rewards": LedgerFacts(
        (
            stream(
                unit=Unit(kind="transition", adjacency="zero-out"),
                participation=Poisson(sampling_rate=0.1, population=100),
                sum_rounding=1e-4,
                protects=(of_rewards.ZEROED(),),
                assumptions=(of_rewards.REWARD_FREE.assumption(),),
            ),
        )
    ),
    "sums of rewards, correlated": LedgerFacts(
        (
            stream(
                unit=TRANSITION,
                correlation=Correlation(kind="prefix-sum"),
                protects=(of_rewards.ONE_REWARD(low="-1", high="0"),),
            ),
        )
    ),
    "a function that is asked": LedgerFacts(
        (stream(**_FUNCTION, dimensions={"values": 2**40}),),
    ),
    "functions of an earlier ledger": LedgerFacts(
        (stream(**_FUNCTION | {"participation": _AGAIN, "dimensions": {"values": 2**40}}),) * 2
    ),
    "logged rewards of one function": LedgerFacts(
        (
            stream(
                **{**_FUNCTION, "unit": Unit(kind="reward-function", adjacency="within-radius")},
                protects=(of_rewards.LOGGED_FUNCTION(radius="0.1"),),
            ),
        )
    ),
    "parts beside the policy": LedgerFacts(
        (stream(protects=(of_streams.POLICIES(), of_streams.PARTS(what="users' returns"))),)
    ),
    "on the grid, settings checked": LedgerFacts(
        (stream().model_copy(update={"noise_law": "on-grid"}),), settings_checked=True
    ),
    "correlated on the grid": LedgerFacts(
        (
            stream(
                correlation=Correlation(kind="prefix-sum"), noise_rounding=1e-4, noise_law="on-grid"
            ),
        )
    ),
    "real people in Gymnasium": met_through_gymnasium(of_streams.NEW_PEOPLE),
    "real people whom Gymnasium is told": met_through_gymnasium(of_streams.MEETS_PERSON),
    "people who are sampled": LedgerFacts(
        (
            stream(
                participation=Poisson(sampling_rate=0.1, population=100),
                noise_law="on-grid",
                assumptions=(of_streams.SAMPLED_PLACES.assumption(),),
            ),
        ),
        settings_checked=True,
    ),
    "votes of real experts": LedgerFacts(
        (
            stream(
                unit=EXPERT,
                noise_law="on-grid",
                protects=(of_experts.EXPERTS_POLICY(),),
                does_not_protect=(of_experts.RELEASED_VOTES(kind="experts"),),
                assumptions=tuple(
                    one.assumption() for one in (of_experts.OWN_EXPERTS, of_experts.PUBLIC_WORLD)
                ),
            ),
        ),
        settings_checked=True,
    ),
    "ratings of completions": LedgerFacts(
        (
            stream(
                unit=Unit(kind="feedback", adjacency="zero-out"),
                noise_law="on-grid",
                protects=(of_language.TUNED(),),
                does_not_protect=(of_language.PATTERNS(), of_language.WHILE_ASKED()),
                assumptions=tuple(
                    one.assumption()
                    for one in (of_language.PUBLIC_MODEL, of_language.OWN_COMPLETIONS)
                ),
            ),
        ),
        settings_checked=True,
    ),
    "logs of people": LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                protects=(of_logs.LEARNED_MODEL(),),
                does_not_protect=(of_logs.PATTERNS(),),
                assumptions=(of_logs.ONE_PERSON.assumption(), of_logs.SETTINGS.assumption()),
            ),
        ),
        settings_checked=True,
    ),
    "noisy steps about people's logs": LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                protects=(of_logs.LEARNED_IN_STEPS(),),
                does_not_protect=(of_logs.PATTERNS(),),
                assumptions=(of_logs.ONE_PERSON.assumption(), of_logs.SETTINGS.assumption()),
            ),
        ),
        settings_checked=True,
    ),
    "blocks of people who rated items": LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                correlation=Correlation(kind="prefix-sum"),
                protects=(of_logs.JOINT(),),
                does_not_protect=(of_logs.PATTERNS(), of_logs.OWN_OFFERS()),
                assumptions=(
                    of_logs.IDS.assumption(),
                    of_logs.COLUMNS.assumption(),
                    of_logs.SETTINGS.assumption(),
                ),
            ),
        ),
        settings_checked=True,
    ),
    "people who come one after the other": live_people(of_people.SEES_TRAJECTORIES),
    "people who ask a service for actions": live_people(
        of_people.SEES_TRAJECTORIES, of_people.SEES_OBSERVATIONS
    ),
    "updates of people's devices": live_people(of_people.SEES_UPDATES),
    "values from a published log": LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                protects=(of_logs.VALUES(),),
                does_not_protect=(of_logs.PUBLISHED(),),
                assumptions=(
                    of_logs.IDS.assumption(),
                    of_logs.COLUMNS.assumption(),
                    of_logs.CHOSEN.assumption(),
                    of_logs.SOURCE.assumption(words="a trial"),
                    of_logs.LICENCE.assumption(words="CC0"),
                ),
            ),
            stream(noise_law="on-grid", protects=(of_logs.LEARNED_POLICY(),)),
        ),
        settings_checked=True,
    ),
    "tables for values": LedgerFacts(
        (
            stream(
                noise_law="on-grid",
                protects=(of_logs.VALUES(),),
                assumptions=(of_logs.CHOSEN.assumption(), of_logs.CELLS.assumption()),
            ),
        ),
        settings_checked=True,
    ),
    "a selection without times": LedgerFacts(
        (stream(selection={"mean": 3.0, "candidates": 4, "accounting": 2}, noise_law="on-grid"),)
    ),
    "a function on the grid": LedgerFacts(
        (stream(**_FUNCTION).model_copy(update={"noise_law": "on-grid"}),)
    ),
    "a choice": LedgerFacts(
        (
            stream(
                unit=Unit(kind="reward-function", adjacency="within-radius"),
                participation=Returning(max_participations=1, min_separation=1),
                parts={},
                horizon=1,
                noise_law="on-grid",
                choice=NoisyMax(candidates=3, sensitivity=0.1, rate=0.5),
                assumptions=(
                    of_rewards.CANDIDATES.assumption(),
                    of_rewards.NOISY_MAXIMUM.assumption(),
                ),
            ),
        )
    ),
    "prefixes": LedgerFacts((PREFIXES,)),
    "prefixes that say what they protect": LedgerFacts(
        (PREFIXES.model_copy(update={"protects": (of_experts.PREFIXES(),)}),)
    ),
    "prefixes, and DP-SGD in turns": LedgerFacts(
        (
            PREFIXES,
            stream(
                participation=Returning(max_participations=2, min_separation=2),
                sum_rounding=1e-4,
                correlation=Correlation(kind="prefix-sum"),
                **_LOGS,
            ),
        )
    ),
    "words of a stranger": LedgerFacts((stream(protects=("every state and action",)),)),
    "a teacher of shards": teacher(),
    "a teacher of shards, on the grid": teacher(accounting=2),
    "a teacher of shards, on the grid, with a fixed seed": teacher(
        accounting=2, entropy="fixed-seed"
    ),
    "Dirichlet about shards, charged for its L1 distance": teacher(
        mechanism=Dirichlet(actions=3, concentration=5, floor=0.1), accounting=2
    ),
    "a teacher of simulated shards": teacher(population="simulated"),
    "a whole teacher, Dirichlet": teacher(
        distance=AnyTwoTeachers(), mechanism=Dirichlet(actions=3, concentration=5, floor=0.1)
    ),
    "observations, truncated Dirichlet": teacher(
        distance=ObservationDistance(radius=0.25, lipschitz=2.0),
        mechanism=TruncatedDirichlet.sized(actions=3, concentration=1, floor=0.1, threshold=1e-4),
    ),
    "observations whose rounding is stated": teacher(
        distance=ObservationDistance(radius=0.25, lipschitz=2.0, rounding=1e-7),
        mechanism=Dirichlet(actions=3, concentration=1, floor=0.1),
    ),
    "two policies": teacher(distance=PolicyDistance(l2=0.01), population="simulated"),
}
