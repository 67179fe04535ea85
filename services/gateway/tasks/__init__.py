"""Rows of a recipe's task, the held-out split, and the messages that a row becomes."""

from services.gateway.tasks.prompt import messages, split_key
from services.gateway.tasks.rows import load
from services.gateway.tasks.split import Split, split

__all__ = ["Split", "load", "messages", "split", "split_key"]
