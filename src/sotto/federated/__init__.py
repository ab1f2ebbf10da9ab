"""Devices that need not trust the server: masked sums, and Flower as the engine."""
