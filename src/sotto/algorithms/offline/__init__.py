"""Offline learners without privacy: CQL and behaviour cloning."""
