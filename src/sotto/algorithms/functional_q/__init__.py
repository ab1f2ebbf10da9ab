"""Q-learning whose rewards are private (Wang and Hegde 2019)."""
