"""Jails: foreign programs are run in them, with nothing of ours within their reach."""
