"""Reinforcement learning of language models on rollout trees.

Importing this package loads no torch.
"""
