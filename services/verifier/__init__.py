"""Scores leaves: the one place where a reward comes from."""
