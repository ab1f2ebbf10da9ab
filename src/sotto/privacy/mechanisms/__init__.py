"""Mechanisms: each adds its noise and states its cost."""
