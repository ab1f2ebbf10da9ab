"""`sotto reproduce`, one module for each paper."""
