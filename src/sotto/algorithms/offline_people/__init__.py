"""Learning from logs of people, each of whom is protected."""
