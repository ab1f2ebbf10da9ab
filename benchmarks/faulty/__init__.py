"""Faults of the whole service of live people: its processes, its people, and its invariants."""
