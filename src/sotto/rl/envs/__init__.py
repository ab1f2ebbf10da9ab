"""Environments: pure JAX with traced parameters, and the Gymnasium bridge.

The folder `gymnasium` holds environments from Gymnasium, and the files `gymnasium_*.py` offer ours
to Gymnasium.
"""
