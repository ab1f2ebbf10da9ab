"""The figures and tables of Sharma et al. 2024."""
