"""DP-SGD trainings of other people, as they describe them: what epsilon their words give."""
