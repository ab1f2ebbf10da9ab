"""Privacy accounting: the events that releases cost, their composition, and privacy curves."""
