"""DPPG, the private policy gradient of Rio et al. 2025."""
