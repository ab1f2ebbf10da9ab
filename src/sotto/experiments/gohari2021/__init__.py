"""The figures of Gohari et al. 2021."""
