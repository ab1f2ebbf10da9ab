"""Logged trajectories with the expert they came from, and Minari files of them."""
