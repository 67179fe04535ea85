"""Commands on a checkpoint: its answers to a prompt, a conversation, and its accuracy on a task."""
