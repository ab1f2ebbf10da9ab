"""Reinforcement learning without privacy: environments, rollouts, networks and returns."""
