"""A private teacher's answers: statement, account and ledger."""
