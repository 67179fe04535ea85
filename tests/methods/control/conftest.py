"""Curricula are tested with the gateway's recipes and stand-ins, too."""

from tests.gateway.conftest import recipe_of, store

__all__ = ["recipe_of", "store"]
