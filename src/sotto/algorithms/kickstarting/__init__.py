"""Students that learn from a private teacher (Gohari et al. 2021)."""
