"""The errors of a campaign. Every message is one sentence that says what to do.

Each class has a `code`, which a client of the HTTP API can rely on. No message contains a token, a
key, a contribution, or the number of another person.
"""

from typing import ClassVar

from sotto.privacy.errors import LedgerUnavailable


class CampaignError(ValueError):
    """A request was refused; nothing was changed."""

    code: ClassVar[str] = "refused"


class NoPlace(CampaignError):
    """No place is free for this person now; they may ask again later."""

    code = "no-place"


class TookPart(CampaignError):
    """The person has taken part as often, or as recently, as the campaign allows."""

    code = "took-part"


class Withdrawn(CampaignError):
    """The person has withdrawn and gets no further place."""

    code = "withdrew"


class Finished(CampaignError):
    """All releases have been made."""

    code = "finished"


class UnknownPlace(CampaignError):
    """The person has no such place."""

    code = "unknown-place"


class PlaceClosed(CampaignError):
    """The place expired, was withdrawn, or its release is closed."""

    code = "place-closed"


class ContributionConflict(CampaignError):
    """Another contribution was kept for this place."""

    code = "contribution-conflict"


class BadContribution(CampaignError):
    """The campaign does not take this contribution."""

    code = "bad-contribution"


class UnknownPerson(CampaignError):
    """The campaign has no person of this number."""

    code = "unknown-person"


class UnknownVersion(CampaignError):
    """The campaign has not published this version of the policy."""

    code = "unknown-version"


class StaleHolder(CampaignError):
    """Another updater has taken the release over, or has made it."""

    code = "stale-holder"


class CampaignMismatch(CampaignError):
    """The database, or the key, belongs to another campaign."""

    code = "campaign-mismatch"


class MasterKeyLost(CampaignError):
    """The file of the master key is missing or does not contain a key."""

    code = "master-key-lost"


class StoreUnavailable(CampaignError, LedgerUnavailable):
    """The database could not be read or written; trying again is safe.

    It is also a `LedgerUnavailable`, which `sotto.serving.traffic.callers` knows how to refuse.
    """

    code = "store-unavailable"
