"""Certificates: derived from ledgers, stored as data, printed as text."""
