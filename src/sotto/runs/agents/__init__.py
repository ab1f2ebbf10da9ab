"""Trained policies, and what can be made of them."""
