"""Scorers that only the verifier can build."""
