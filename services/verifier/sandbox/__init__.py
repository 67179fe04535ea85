"""Confined scoring in child processes, which may fail in any way."""
