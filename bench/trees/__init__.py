"""Trees against independent samples: tokens until a policy is right."""

from bench.trees.measure import run as run
