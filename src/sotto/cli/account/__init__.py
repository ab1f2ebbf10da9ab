"""`sotto account` and `sotto calibrate`."""
