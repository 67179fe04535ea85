"""Trees against independent samples on SmolLM2 that learns to add."""

from bench.sums.measure import run as run
