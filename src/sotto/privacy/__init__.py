"""The vault: units, mechanisms, accounting, the door, the ledger and the certificate."""
