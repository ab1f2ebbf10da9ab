"""Limits of a service towards strangers: connections, callers, sizes and rates."""
