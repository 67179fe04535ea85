"""Renderers: the tokens of conversations, as the template of a model writes them."""
