"""Algorithms without privacy: PPO, A2C, DQN and tabular Q-learning."""
