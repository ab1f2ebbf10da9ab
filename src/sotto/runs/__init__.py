"""Runs: the run directory, checkpoints, metrics, figures and the report."""
