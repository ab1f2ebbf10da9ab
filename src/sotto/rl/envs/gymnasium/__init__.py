"""Gymnasium environments: the bridge, vectorised workers and AirRaid."""
