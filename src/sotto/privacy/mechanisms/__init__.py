"""Mechanisms: each of them adds noise and states its cost."""
