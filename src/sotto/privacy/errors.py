"""The errors of the vault. Every message is one sentence that says what to do."""


class PrivacyError(ValueError):
    """A request that would break the guarantee was refused; nothing has been charged."""


class BudgetExceeded(PrivacyError):
    """The budget does not cover the request, or no queries are left."""


class NothingReleased(PrivacyError):
    """The budget was spent, and the releases hold nothing to learn from. The charge stays."""


class ParticipationViolation(PrivacyError):
    """A person would take part more often than the stream's statement allows."""


class HorizonExceeded(PrivacyError):
    """More releases were asked for than the stream's statement allows."""


class LedgerMismatch(PrivacyError):
    """The ledger, stream or release is another one than the caller names."""


class LedgerCorrupt(PrivacyError):
    """The ledger's entries differ from those that were written."""


class LedgerOlder(LedgerCorrupt):
    """The ledger lacks charges, because a backup of it was put back.

    Args:
        ledger: the ledger, in words.
        what: the thing that was made from charges that the ledger does not hold.
        made: number of charges behind that thing.
        held: number of charges that the ledger holds.
    """

    def __init__(self, ledger: str, what: str, made: int, held: int) -> None:
        super().__init__(
            f"{ledger} is older than what was made from it: {what} was made under {made} charges, "
            f"which it does not hold (it has {held}); restore the ledger from a newer backup"
        )


class LedgerUnavailable(PrivacyError):
    """The ledger could not be read or written; trying again is safe."""


class TooFewDevices(PrivacyError):
    """A sum holds fewer devices than promised. It was neither opened nor charged."""


class UnknownStudent(PrivacyError):
    """The teacher has no such student, or answers them no longer."""


class StudentExists(PrivacyError):
    """The teacher has a student of this name already."""


class IdempotencyConflict(PrivacyError):
    """The key belongs to another request."""
