"""Environments: the cost of an answer beside the tool's own time, the memory of open sessions."""

from bench.environments.measure import run as run
