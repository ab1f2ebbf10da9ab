"""Certificates are derived from ledgers, stored as data and printed as text."""
