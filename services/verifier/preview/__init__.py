"""Checks before a run begins, and scores on request, without a broker and a store."""
