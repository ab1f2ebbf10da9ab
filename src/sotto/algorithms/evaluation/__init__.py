"""Values of policies from logs of people, without a simulator."""
