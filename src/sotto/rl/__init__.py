"""The non-private craft: networks, distributions, rollouts, returns, environments."""
