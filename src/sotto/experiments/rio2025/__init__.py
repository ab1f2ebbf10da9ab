"""The tables and figures of Rio et al. 2025."""
