"""The Dirichlet mechanism on rows of action probabilities, and what it costs."""
