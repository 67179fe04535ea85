"""Time to sample a step's trees against independent samples."""

from bench.growing.measure import run as run
