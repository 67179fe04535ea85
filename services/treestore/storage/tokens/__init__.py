"""Tokens of paths, and the tokenizers of runs that read and write them."""
