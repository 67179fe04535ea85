"""Trees against independent samples where rollouts use tools."""

from bench.trunks.measure import run as run
