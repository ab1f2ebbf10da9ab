"""The bandit on real people's ratings of films and of lectures."""
