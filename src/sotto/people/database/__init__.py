"""The database of a campaign: people, their places, and their sealed contributions."""
