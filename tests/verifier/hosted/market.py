"""A shop whose tool has the name of another's."""

from tests.verifier.hosted.shop import price

__all__ = ["price"]
