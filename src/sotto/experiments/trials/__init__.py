"""Randomised trials with real people, as logs for private evaluation."""
