"""Scoring that may go wrong in any way, in processes of its own."""
