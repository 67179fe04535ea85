"""Banyan: reinforcement learning of language models on rollout trees. Light: importing this package loads no torch."""
