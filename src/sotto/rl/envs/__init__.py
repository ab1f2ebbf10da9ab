"""Environments: pure JAX with traced parameters, and the Gymnasium bridge.

The folder `gymnasium` holds environments from Gymnasium, and `for_gymnasium.py` offers ours to it.
"""
