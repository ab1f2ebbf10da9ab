"""Certificates on paper: one page in HTML or PDF, whose bytes depend only on the certificate."""
