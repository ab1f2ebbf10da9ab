"""Errors that more than one part of the house raises."""


class RunError(ValueError):
    """A run directory, or something in it, is not what the command needs."""
