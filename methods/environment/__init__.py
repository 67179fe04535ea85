"""Environments that answer a path's actions, a file each."""
