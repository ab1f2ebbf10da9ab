"""Devices that show the server sums only: masked sums, and Flower as the engine."""
