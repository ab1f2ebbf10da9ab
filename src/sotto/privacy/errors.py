"""What the vault refuses, by kind. Every message is one sentence that says what to do."""


class PrivacyError(ValueError):
    """Something that would break the guarantee was refused; nothing has been charged."""


class BudgetExceeded(PrivacyError):
    """It would cost more than the budget, or there are no queries left."""


class NothingReleased(PrivacyError):
    """The budget was spent and left nothing to learn from; unlike the others, this one charges."""


class ParticipationViolation(PrivacyError):
    """Somebody would take part more often than the stream's statement says."""


class HorizonExceeded(PrivacyError):
    """More releases than the stream's statement says."""


class LedgerMismatch(PrivacyError):
    """This is not the ledger, stream or release that the caller takes it for."""


class LedgerCorrupt(PrivacyError):
    """The ledger's entries are not what was written."""


class LedgerOlder(LedgerCorrupt):
    """The ledger has forgotten charges: a backup of it was put back.

    Args:
        ledger: which one, in words.
        what: was made from charges that it does not hold.
        made: charges behind that.
        held: charges that the ledger holds.
    """

    def __init__(self, ledger: str, what: str, made: int, held: int) -> None:
        super().__init__(
            f"{ledger} is older than what was made from it: {what} was made under {made} charges, "
            f"which it does not hold (it has {held}); restore the ledger from a newer backup"
        )


class LedgerUnavailable(PrivacyError):
    """The ledger could not be read or written; trying again is safe."""


class UnknownStudent(PrivacyError):
    """The teacher has no such student, or answers them no longer."""


class StudentExists(PrivacyError):
    """The teacher has a student of this name already."""


class IdempotencyConflict(PrivacyError):
    """The key belongs to another request."""
