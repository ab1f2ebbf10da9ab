"""Attacks on small examples that measure how much a mechanism gives away."""
