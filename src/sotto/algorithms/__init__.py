"""Algorithms, one file each, readable top to bottom."""
