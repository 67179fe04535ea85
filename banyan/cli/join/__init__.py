"""`banyan join` and `banyan token`."""
