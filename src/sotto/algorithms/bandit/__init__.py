"""Contextual bandit that learns from people's ratings, each person protected."""
