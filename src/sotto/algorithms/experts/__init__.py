"""Training of simulated experts."""
