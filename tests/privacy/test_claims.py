"""Every sentence of a certificate is printed where it holds, and nowhere else."""

import hashlib
import json
from pathlib import Path

import pytest
from kinds_of_statements import KINDS, SCHEMA_1, facts_of, stream

from sotto.privacy.claims import (
    BROUGHT,
    DEFINED,
    EARLIER,
    PRESENT,
    LedgerFacts,
    Quoted,
    Reference,
    by_name,
    described,
    logs,
    rewards,
    said,
    said_by_schema_1,
    same_sentences,
    same_stream,
)
from sotto.privacy.claims import experts as of_experts
from sotto.privacy.claims.earlier import brought, superseded
from sotto.privacy.statements import Assumption, StreamStatement

# Read beside the code that makes each sentence true. In the order of certificates: what is
# protected, what is not, what the code enforces, what is up to the user.
EXPECTED = {
    "dppg of schema 1": """
        dppg.policies@3 dppg.patterns@2 dppg.own-trajectory@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 noise.correlated@3
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 general.timing@2 population.simulated@3
    """,
    "dppg-paper of schema 1": """
        dppg.policies@3 dppg.patterns@2 dppg.own-trajectory@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 people.settings@3
        ledger.enrolment@5 noise.random@3 noise.scaled@2 door.unchanged@2 general.timing@2
        population.simulated@3
    """,
    "q-iterations of schema 1": """
        rewards.whole-function functional-q.visits functional-q.curve@2
        rewards.other-runs@2 noise.scaled-values@2 general.side-channels@2
        functional-q.reward-free@2 ledger.charged@4 noise.fresh@2
        functional-q.one-function@2 functions.sensitivity@2 rewards.settings@3
        rewards.kept@5 noise.random@3 noise.scaled@2 general.timing@2
        population.simulated@3
    """,
    "q-paper of schema 1": """
        functional-q.visits functional-q.curve@2 rewards.other-runs@2
        general.side-channels@2 ledger.charged@4 functional-q.one-function@2
        rewards.settings@3 rewards.kept@5 noise.random@3 general.timing@2
        population.simulated@3
    """,
    "q-vector of schema 1": """
        rewards.one functional-q.visits functional-q.curve@2 rewards.other-runs@2
        general.side-channels@2 functional-q.reward-free@2 ledger.charged@4
        door.contributed@3 gaussian.rounded@2 noise.fresh@2 rewards.settings@3
        rewards.kept@5 noise.random@3 noise.scaled@2 door.unchanged@2 general.timing@2
        population.simulated@3
    """,
    "votes of schema 1": """
        votes.experts-policy@3 votes.released@3 votes.how-many votes.most-experts
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 votes.own-experts
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 general.timing@2 population.simulated@3
    """,
    "clones of schema 1": """
        votes.clones-log@3 votes.released@3 votes.how-many votes.most-experts
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        votes.own-clones@3 ledger.counted@3 door.contributed@3 gaussian.rounded@2
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 general.timing@2 population.simulated@3
    """,
    "service of schema 1": """
        distance.shards@3 distance.asked-observations general.what-is-true-of-all@2
        answers.other-ledgers@2 general.side-channels@2 answers.charged@2
        distance.mean@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 distance.disjoint@2 answers.delta@2
        noise.random@3 answers.earlier-law@2 general.timing@2 population.simulated@3
    """,
    "people of a plan": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2 ledger.counted@3
        ledger.planned@2 door.contributed@3 gaussian.rounded@2 stream.settings@2
        ledger.enrolment@5 noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "people of an adaptive ledger": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2 ledger.counted@3
        ledger.filtered door.contributed@3 gaussian.rounded@2 stream.settings@2
        ledger.enrolment@5 noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "people who share a budget": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2 ledger.counted@3
        ledger.shared-budget@2 door.contributed@3 gaussian.rounded@2 stream.settings@2
        ledger.enrolment@5 noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "a selection of a plan": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2 ledger.counted@3
        door.contributed@3 gaussian.rounded@2 selection.best-only@2 stream.candidates
        ledger.enrolment@5 noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        selection.how-long@3 general.timing@2
    """,
    "nothing charged": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 people.settings@3
        ledger.enrolment@5 noise.random@3 general.timing@2
    """,
    "people": """
        dppg.policies@3 general.what-is-true-of-all@2 general.other-runs@2
        general.side-channels@2 ledger.counted@3 door.contributed@3 gaussian.rounded@2
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "returning, correlated": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 noise.correlated@3
        dppg.no-memory@2 people.settings@3 ledger.enrolment@5 noise.random@3
        noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "a fixed seed": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 people.settings@3
        ledger.enrolment@5 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "noise in shares": """
        shares.server@2 shares.everybody@2 shares.malicious-server shares.took-part
        shares.poison general.what-is-true-of-all@2 general.other-runs@2
        general.side-channels@2 ledger.counted@3 door.contributed@3 gaussian.rounded@2
        shares.law shares.enough people.settings@3 ledger.enrolment@5
        shares.honest-devices@2 shares.masks@2 noise.random@3 door.unchanged@2
        runs.failure@2 general.timing@2
    """,
    "counters": """
        ucb.counters@3 ucb.local-counters@2 ucb.own-actions@2 ucb.in-common@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 noise.correlated@3
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 general.timing@2 population.simulated@3
    """,
    "values from a published log": """
        evaluation.values evaluation.learnt evaluation.published
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 evaluation.ids evaluation.columns evaluation.chosen@3
        evaluation.source evaluation.licence people.settings@3 ledger.enrolment@5
        noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "tables for values": """
        evaluation.values
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 evaluation.chosen@3 evaluation.cells people.settings@3 ledger.enrolment@5
        noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "a selection": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 selection.best-only@2
        people.candidates@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 runs.failure@2 selection.how-long@3 general.timing@2
    """,
    "DP-SGD over experts, sampled": """
        dp-sgd.logged dp-sgd.slots@3 general.what-is-true-of-all@2 general.other-runs@2
        general.side-channels@2 ledger.counted@3 door.contributed@3 factored.rounded@2
        draws.secret dp-sgd.own-logs@2 releases.pool@2 people.settings@3
        ledger.enrolment@5 noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "DP-SGD on rewards": """
        dp-sgd.zeroed@2 rewards.other-runs@2 general.side-channels@2
        functional-q.reward-free@2 ledger.charged@4 door.contributed@3
        factored.rounded@2 noise.fresh@2 draws.secret rewards.settings@3 rewards.kept@5
        noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "sums of rewards, correlated": """
        rewards.one rewards.other-runs@2 general.side-channels@2 ledger.charged@4
        door.contributed@3 gaussian.rounded@2 noise.correlated@3 rewards.settings@3
        rewards.kept@5 noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "a function that is asked": """
        rewards.other-runs@2 noise.scaled-values@2 general.side-channels@2
        ledger.charged@4 noise.fresh@2 functions.one-answer@3 functions.sensitivity@2
        rewards.settings@3 rewards.kept@5 noise.random@3 noise.scaled@2 runs.failure@2
        general.timing@2
    """,
    "functions of an earlier ledger": """
        rewards.other-runs@2 noise.scaled-values@2 general.side-channels@2
        ledger.charged@4 noise.fresh@2 functions.one-answer@3 functions.sensitivity@2
        rewards.settings@3 rewards.streams rewards.kept@5 noise.random@3 noise.scaled@2
        runs.failure@2
        general.timing@2
    """,
    "logged rewards of one function": """
        rewards.logged-function rewards.other-runs@2 noise.scaled-values@2
        general.side-channels@2 ledger.charged@4 noise.fresh@2 functions.sensitivity@2
        rewards.settings@3 rewards.kept@5 noise.random@3 noise.scaled@2 runs.failure@2
        general.timing@2
    """,
    "parts beside the policy": """
        dppg.policies@3 dppg.parts@3 general.what-is-true-of-all@2 general.other-runs@2
        general.side-channels@2 ledger.counted@3 door.contributed@3 gaussian.rounded@2
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "on the grid, settings checked": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 people.settings@3 ledger.enrolment@5 noise.random@3 door.unchanged@2
        runs.failure@2
        general.timing@2
    """,
    "correlated on the grid": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 noise.law@2
        noise.correlated@3 noise.rounded@2 people.settings@3 ledger.enrolment@5
        noise.random@3 door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "real people in Gymnasium": """
        dppg.policies@3 dppg.patterns@2 dppg.own-trajectory@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        dppg.unseen@2 ledger.counted@3 door.contributed@3 door.compiled@2
        gaussian.rounded@2 noise.law@2 dppg.first-policy@2 dppg.no-memory@2 dppg.own-output@2
        dppg.new-people people.settings@3 ledger.enrolment@5 noise.random@3 door.unchanged@2
        runs.failure@2
        general.timing@2
    """,
    "real people whom Gymnasium is told": """
        dppg.policies@3 dppg.patterns@2 dppg.own-trajectory@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        dppg.unseen@2 ledger.counted@3 door.contributed@3 door.compiled@2
        gaussian.rounded@2 noise.law@2 dppg.first-policy@2 dppg.no-memory@2 dppg.own-output@2
        dppg.meets-person people.settings@3 ledger.enrolment@5 noise.random@3 door.unchanged@2
        runs.failure@2
        general.timing@2
    """,
    "people who are sampled": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2
        gaussian.rounded@2 noise.law@2 draws.secret sampling.places
        people.settings@3 ledger.enrolment@5 noise.random@3 door.unchanged@2
        runs.failure@2
        general.timing@2
    """,
    "votes of real experts": """
        votes.experts-policy@3 votes.released@3
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2
        gaussian.rounded@2 noise.law@2 votes.own-experts votes.public-world
        people.settings@3 ledger.enrolment@5 noise.random@3 door.unchanged@2
        runs.failure@2
        general.timing@2
    """,
    "ratings of completions": """
        language.tuned language.patterns language.while-asked
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 language.public-model@2 language.own-completions@2 people.settings@3
        ledger.enrolment@5 noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "logs of people": """
        logs.learned logs.patterns
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 logs.one-person logs.settings people.settings@3
        ledger.enrolment@5 noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "noisy steps about people's logs": """
        logs.steps logs.patterns
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 logs.one-person logs.settings people.settings@3
        ledger.enrolment@5 noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "blocks of people who rated items": """
        logs.joint logs.patterns logs.own-offers@2 general.what-is-true-of-all@2
        general.other-runs@2 general.side-channels@2 ledger.counted@3 door.contributed@3
        door.compiled@2 gaussian.rounded@2 noise.law@2 noise.correlated@3 evaluation.ids
        evaluation.columns logs.settings people.settings@3 ledger.enrolment@5 noise.random@3
        door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "people who come one after the other": """
        people.joint dppg.policies@3 dppg.patterns@2 people.sees-trajectories people.participation
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 people.own-world people.one-token people.settings@3
        ledger.enrolment@5 noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "people who ask a service for actions": """
        people.joint dppg.policies@3 dppg.patterns@2 people.sees-trajectories
        people.sees-observations people.participation
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 people.own-world people.one-token people.settings@3
        ledger.enrolment@5 noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "updates of people's devices": """
        people.joint dppg.policies@3 dppg.patterns@2 people.sees-updates people.participation
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 door.compiled@2 gaussian.rounded@2
        noise.law@2 people.own-world people.one-token people.settings@3
        ledger.enrolment@5 noise.random@3 door.unchanged@2 runs.failure@2 general.timing@2
    """,
    "a selection without times": """
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 gaussian.rounded@2 noise.law@2
        selection.best-only@2 selection.no-times people.candidates@3 ledger.enrolment@5
        noise.random@3 door.unchanged@2 runs.failure@2 selection.how-long@3
        general.timing@2
    """,
    "a function on the grid": """
        rewards.other-runs@2 general.side-channels@2 ledger.charged@4
        functions.rounded@3 noise.law@2 noise.fresh@2 functions.sensitivity@2
        rewards.settings@3 rewards.kept@5 functions.clipped@2 noise.random@3
        runs.failure@2
        general.timing@2
    """,
    "a choice": """
        rewards.other-runs@2 general.side-channels@2 functional-q.candidates
        choice.noisy-maximum ledger.charged@4 noise.law@2 noise.fresh@2 rewards.settings@3
        rewards.kept@5 noise.random@3 runs.failure@2 general.timing@2
    """,
    "prefixes": """
        prefixes.in-the-clear@2 prefixes.beyond-actions@2 general.what-is-true-of-all@2
        general.other-runs@2 general.side-channels@2 ledger.counted@3 noise.law@2
        prefixes.fresh@2 prefixes.one-action@3 prefixes.silent@2 people.settings@3
        ledger.enrolment@5 prefixes.one-world@2 prefixes.own-data noise.random@3
        door.unchanged@2 general.timing@2 population.simulated@3
    """,
    "prefixes that say what they protect": """
        prefixes.policy prefixes.in-the-clear@2 prefixes.beyond-actions@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 noise.law@2 prefixes.fresh@2 prefixes.one-action@3
        prefixes.silent@2 people.settings@3 ledger.enrolment@5 prefixes.one-world@2
        prefixes.own-data noise.random@3 door.unchanged@2 general.timing@2
        population.simulated@3
    """,
    "prefixes, and DP-SGD in turns": """
        dp-sgd.logged dp-sgd.slots@3 prefixes.in-the-clear@2 prefixes.beyond-actions@2
        general.what-is-true-of-all@2 general.other-runs@2 general.side-channels@2
        ledger.counted@3 door.contributed@3 factored.rounded@2 noise.correlated@3
        prefixes.fresh@2 prefixes.one-action@3 prefixes.silent@2 dp-sgd.own-logs@2
        releases.pool@2 people.settings@3 ledger.enrolment@5 prefixes.one-world@2
        prefixes.own-data noise.random@3 noise.scaled@2 door.unchanged@2 runs.failure@2
        general.timing@2 population.simulated@3
    """,
    "words of a stranger": """
        quoted general.what-is-true-of-all@2 general.other-runs@2
        general.side-channels@2 ledger.counted@3 door.contributed@3 gaussian.rounded@2
        people.settings@3 ledger.enrolment@5 noise.random@3 noise.scaled@2
        door.unchanged@2 runs.failure@2
        general.timing@2
    """,
    "a teacher of shards": """
        distance.shards@3 distance.asked-observations general.what-is-true-of-all@2
        answers.other-ledgers@2 general.side-channels@2 answers.charged@2
        distance.mean@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 distance.disjoint@2 answers.delta@2
        noise.random@3 answers.earlier-law@2 general.timing@2
    """,
    "a teacher of shards, on the grid": """
        distance.shards@3 distance.asked-observations general.what-is-true-of-all@2
        answers.other-ledgers@2 general.side-channels@2 answers.charged@2
        distance.mean@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.grid-law@2 answers.settings answers.nothing-else@3 distance.disjoint@2
        answers.delta@2 noise.random@3 general.timing@2
    """,
    "a teacher of shards, on the grid, with a fixed seed": """
        distance.shards@3 distance.asked-observations general.what-is-true-of-all@2
        answers.other-ledgers@2 general.side-channels@2 answers.charged@2
        distance.mean@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 distance.disjoint@2 answers.delta@2
        general.timing@2
    """,
    "Dirichlet about shards, charged for its L1 distance": """
        distance.shards@3 distance.asked-observations general.what-is-true-of-all@2
        answers.other-ledgers@2 general.side-channels@2 answers.charged@2
        distance.mean@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 distance.disjoint@2 answers.delta@2
        noise.random@3 answers.law@2 general.timing@2
    """,
    "a teacher of simulated shards": """
        distance.shards@3 distance.asked-observations general.what-is-true-of-all@2
        answers.other-ledgers@2 general.side-channels@2 answers.charged@2
        distance.mean@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 distance.disjoint@2 answers.delta@2
        noise.random@3 answers.earlier-law@2 general.timing@2 population.simulated@3
    """,
    "a whole teacher, Dirichlet": """
        distance.teacher@2 distance.no-share@2 answers.other-ledgers@2
        general.side-channels@2 answers.charged@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 noise.random@3 answers.law@2
        general.timing@2
    """,
    "observations, truncated Dirichlet": """
        distance.observations@3 distance.training-data distance.chosen-observations@3
        distance.no-training-claim@2 answers.other-ledgers@2 general.side-channels@2
        answers.charged@2 distance.lipschitz distance.float64 answers.levels@3
        answers.rounded@3 answers.settings answers.nothing-else@3 noise.random@3
        answers.law@2 general.timing@2
    """,
    "observations whose rounding is stated": """
        distance.observations@3 distance.training-data distance.chosen-observations@3
        distance.refused@2 distance.no-training-claim@2 answers.other-ledgers@2
        general.side-channels@2 answers.charged@2 distance.lipschitz distance.analysed
        answers.levels@3 answers.rounded@3 answers.settings answers.nothing-else@3
        noise.random@3 answers.law@2 general.timing@2
    """,
    "two policies": """
        distance.policy@2 distance.training-data distance.larger-differences
        distance.no-training-claim@2 answers.other-ledgers@2 general.side-channels@2
        answers.charged@2 distance.rows@2 answers.levels@3 answers.rounded@3
        answers.settings answers.nothing-else@3 distance.within@2 noise.random@3
        answers.earlier-law@2 general.timing@2
    """,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_says_exactly_these(kind: str) -> None:
    assert [_name(one) for one in said(KINDS[kind])] == EXPECTED[kind].split()


_PLANNED = "ledger.planned@2"


def test_streams_about_rewards_are_planned_for_rewards() -> None:
    again = KINDS["functions of an earlier ledger"].streams
    (rewards,) = (
        one for one in said(LedgerFacts(again, sharing="planned")) if _name(one) == _PLANNED
    )
    assert rewards.sentence.startswith("All streams that may be about the same rewards are opened")
    assert "people" not in rewards.sentence
    (people,) = (one for one in said(KINDS["people of a plan"]) if _name(one) == _PLANNED)
    assert people.sentence == by_name()["ledger.planned", 1].sentence  # in the words of before
    earlier = Reference(claim="ledger.planned", version=1)
    assert same_sentences([earlier], [rewards])


def test_what_answers_protect_is_said_once_for_all_of_them() -> None:
    shards, *_ = said(KINDS["a teacher of shards"])
    assert shards.sentence.endswith("contributed, in the one of the 100 shards that holds it.")
    observations, *_ = said(KINDS["observations, truncated Dirichlet"])
    assert observations.sentence.endswith("; epsilon already counts all allowed answers.")


def test_every_sentence_is_said_somewhere() -> None:
    told = {name.split("@")[0] for names in EXPECTED.values() for name in names.split()}
    assert {one.identifier for one in (*PRESENT, *BROUGHT)} <= told


def test_every_sentence_is_brought_or_has_a_place_in_the_order() -> None:
    assert set(DEFINED) == {*PRESENT, *BROUGHT}


@pytest.mark.parametrize("kind", SCHEMA_1["words"])
def test_earlier_certificates_are_told_word_by_word(kind: str) -> None:
    """What a training of version 0.1.0 wrote down, against what is remembered of its words."""
    words = SCHEMA_1["words"][kind]
    told = said_by_schema_1(facts_of(words))
    assert list(told.protects) == words["protects"]
    assert list(told.does_not_protect) == words["does_not_protect"]
    assert [one.model_dump() for one in told.assumptions] == words["assumptions"]
    assert any("numpy's SeedSequence" in line for line in told.corrections)


def test_what_was_untrue_is_corrected() -> None:
    votes = said_by_schema_1(facts_of(SCHEMA_1["words"]["votes"]))
    assert any("what they logged" in line for line in votes.corrections)
    function = said_by_schema_1(facts_of(SCHEMA_1["words"]["q-iterations"]))
    assert any("after the charge" in line for line in function.corrections)
    clones = said_by_schema_1(facts_of(SCHEMA_1["words"]["clones"]))
    assert not any("what they logged" in line for line in clones.corrections)


# --- versions ------------------------------------------------------------------------------------

_RECORD = Path(__file__).parents[1] / "attacks" / "sentences.json"


def test_a_sentence_whose_words_change_has_a_new_version() -> None:
    """The digest of every sentence, by name and version, as it was when it was first released.

    A sentence that is put better gets the next version, and its earlier words go to `superseded`:
    otherwise certificates that say it would say something else than they did.
    """
    recorded = json.loads(_RECORD.read_text())
    of_today = (*PRESENT, *BROUGHT, *described.SENTENCES)
    for one in (*of_today, *EARLIER, *superseded.SCHEMA_1, *brought.OF_SCHEMA_1):
        words = [one.section, one.sentence, one.how]
        digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
        assert digest in recorded[f"{one.identifier}@{one.version}"], one.identifier


def test_a_version_has_one_wording() -> None:
    names = [(one.identifier, one.version) for one in (*PRESENT, *BROUGHT, *EARLIER)]
    assert len(set(names)) == len(names)


def test_an_unknown_sentence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no sentence 'noise\.random' has a version 7"):
        Reference(claim="noise.random", version=7)
    with pytest.raises(ValueError, match="needs the number 'teachers'"):
        Reference(claim="distance.shards", version=1)
    with pytest.raises(ValueError, match="cannot say 'nothing' as its epsilon"):
        Reference(claim="noise.random", version=3, numbers={"epsilon": "nothing"})


# --- streams that go on --------------------------------------------------------------------------


def test_a_stream_goes_on_without_sentences_that_were_added_since() -> None:
    today = StreamStatement.model_validate(SCHEMA_1["words"]["votes"]["streams"][0])
    added = (logs.ONE_PERSON.assumption(), logs.SOURCE.assumption(words="a clinic"))
    more = today.model_copy(update={"assumptions": (*today.assumptions, *added)})
    assert same_stream(today, more)
    assert not same_stream(more, today)  # whoever asks says today's sentences
    other = (*more.assumptions, of_experts.OWN_CLONES.assumption())
    assert not same_stream(today, more.model_copy(update={"assumptions": other}))


def test_a_campaign_goes_on_that_did_not_say_who_reads_observations() -> None:
    (before,) = KINDS["people who come one after the other"].streams
    (now,) = KINDS["people who ask a service for actions"].streams
    assert same_stream(before, now)
    assert not same_stream(now, before)


def test_a_bound_that_was_rounded_otherwise_is_of_the_same_stream() -> None:
    votes = StreamStatement.model_validate(SCHEMA_1["words"]["votes"]["streams"][0])

    def bounded(bound: str, name: str = "'values'") -> StreamStatement:
        said = rewards.SENSITIVITY.assumption(
            name=name, bound=bound, norm="Euclidean norm", because="why"
        )
        return votes.model_copy(update={"assumptions": (*votes.assumptions, said)})

    assert same_stream(bounded("1.40712"), bounded("1.40713"))
    assert not same_stream(bounded("1.40712"), bounded("1.40712", "'others'"))


def test_a_stream_is_the_same_under_earlier_words_and_no_other() -> None:
    stored = StreamStatement.model_validate(SCHEMA_1["words"]["votes"]["streams"][0])
    today = stored.model_copy(
        update={
            "protects": (of_experts.EXPERTS_POLICY(),),
            "does_not_protect": (
                of_experts.RELEASED_VOTES(kind="experts"),
                of_experts.HOW_MANY(),
                of_experts.MOST_EXPERTS(),
            ),
        }
    )
    assert stored != today
    assert same_stream(stored, today)
    clones = today.model_copy(update={"assumptions": (of_experts.OWN_CLONES.assumption(),)})
    for other in (
        clones,
        today.model_copy(update={"protects": (of_experts.CLONES_LOG(),)}),
        today.model_copy(update={"protects": (*today.protects, "everything")}),
        today.model_copy(update={"horizon": today.horizon + 1}),
        today.model_copy(update={"does_not_protect": today.does_not_protect[1:]}),
    ):
        assert not same_stream(stored, other)


def test_words_of_a_stranger_are_quoted() -> None:
    own = Assumption(statement="A.", enforced_by="user", how="B.")
    one = stream(protects=("All.",), assumptions=(own,))
    quoted = [line for line in said(LedgerFacts((one,))) if isinstance(line, Quoted)]
    assert [(line.section, line.sentence, line.how) for line in quoted] == [
        ("protects", "All.", ""),
        ("user", "A.", "B."),
    ]


def _name(one: Reference | Quoted) -> str:
    if isinstance(one, Quoted):
        return "quoted"
    return one.claim if one.version == 1 else f"{one.claim}@{one.version}"
