"""Environments: answers to actions, with receipts, from states that are made again when lost."""
