"""sotto: reinforcement learning on people's data, with privacy certificates that are true."""

__version__ = "0.1.0"
