"""Loggers of a run's metrics, one a file; feed.py gives each a thread of its own."""
