"""The Dirichlet mechanism on rows of action probabilities, and its cost."""
