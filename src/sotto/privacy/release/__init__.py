"""The door: releases of sums, functions and prefixes."""
