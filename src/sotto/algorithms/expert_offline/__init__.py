"""Offline learning in which each expert is protected (Sharma et al. 2024)."""
