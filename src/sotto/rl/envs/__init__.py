"""Environments: pure JAX with traced parameters, and the Gymnasium bridge."""
