"""What events cost: privacy curves, composition, and the events themselves."""
