"""Environments: their answers to actions, and the proof that an answer is theirs."""
