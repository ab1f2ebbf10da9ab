"""Logs of real people, imported as Minari datasets in which each person is one unit."""
