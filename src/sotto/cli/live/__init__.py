"""Commands for live people, devices and services."""
