"""The ledger: entries, databases, persons and what they have spent."""
