"""Environments that clients open, step, fork and close by id, beside those of trees."""
