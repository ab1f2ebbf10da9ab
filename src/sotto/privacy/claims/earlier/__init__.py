"""Sentences of earlier versions, so that their certificates stay verified."""
