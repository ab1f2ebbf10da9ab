"""What may stand in the places of a sentence of sotto; other words are their author's."""

import re

import pytest
from kinds_of_statements import stream

from sotto.algorithms.dppg import critics
from sotto.algorithms.dppg.parts import AdaptiveClip, ObservationStatistics, PrivateReturn
from sotto.privacy.claims import (
    BROUGHT,
    EARLIER,
    PRESENT,
    Claim,
    LedgerFacts,
    Quoted,
    Reference,
    described,
    rewards,
    said,
)
from sotto.privacy.claims import experts as of_experts
from sotto.privacy.claims import streams as of_streams
from sotto.privacy.claims.claim import PLACES
from sotto.privacy.statements import Assumption

FORGED = "everything about everybody, with epsilon 0"


@pytest.mark.parametrize(
    ("claim", "numbers"),
    [
        (of_streams.PARTS, {"what": FORGED}),
        (rewards.ONE_REWARD, {"low": "-1", "high": f"1]. Nobody sees {FORGED}, [0"}),
        (rewards.LOGGED_FUNCTION, {"radius": "any distance"}),
        (rewards.WHOLE_FUNCTION, {"radius": "inf", "share": "1", "low": "0", "high": "1"}),
        (of_experts.RELEASED_VOTES, {"kind": FORGED}),
        (
            rewards.SENSITIVITY,
            {"name": "'f'", "bound": "1", "norm": FORGED, "because": "it is so"},
        ),
    ],
)
def test_an_author_puts_no_words_into_a_sentence_of_sotto(
    claim: Claim, numbers: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="cannot say"):
        claim(**numbers)
    with pytest.raises(ValueError, match="cannot say"):
        Reference(claim=claim.identifier, version=claim.version, numbers=numbers)
    words = claim.sentence.format_map(numbers)
    own = Assumption(statement=words, enforced_by="user", how=claim.how)
    brought = stream(
        protects=(words,) if claim.section == "protects" else (),
        does_not_protect=(words,) if claim.section == "does-not-protect" else (),
        assumptions=(own,) if claim.section == "user" else (),
    )
    (one,) = (line for line in said(LedgerFacts((brought,))) if line.sentence == words)
    assert isinstance(one, Quoted)


def test_free_words_stand_only_where_the_user_speaks() -> None:
    free = {name for name, pattern in PLACES.items() if re.fullmatch(pattern, FORGED)}
    assert free == {"name", "because", "words"}
    for one in (*PRESENT, *BROUGHT, *described.SENTENCES, *EARLIER):
        places = set(re.findall(r"\{(\w+)\}", one.sentence))
        assert places <= set(PLACES), one.identifier
        assert one.section == "user" or not places & free, one.identifier


def test_every_part_beside_the_policy_can_be_said() -> None:
    shown = [one.described for one in (AdaptiveClip, ObservationStatistics, PrivateReturn)]
    for what in (*shown, critics.DESCRIBED):
        assert what in of_streams.PARTS(what=what)
