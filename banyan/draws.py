"""Counter-based randomness: a draw is keyed by its purpose, never by call count.

So neither batch mates nor resumption change a draw (docs/protocol.md, Determinism). Keys are 64-bit
digests; draws are splitmix64 of key and position (Steele, Lea, Flood 2014).
"""

from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from banyan.digest import blake, packed

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
U64 = npt.NDArray[np.uint64]
T = TypeVar("T")


def key(seed: int, purpose: str, *parts: bytes | int) -> int:
    """Return the 64-bit key of a stream of draws: of a seed, a purpose, and a node or branch."""
    data = [
        packed(p if isinstance(p, bytes) else p.to_bytes(8, "little", signed=True)) for p in parts
    ]
    digest = blake(seed.to_bytes(8, "little", signed=False), packed(purpose.encode()), *data)
    return int.from_bytes(digest[:8], "little")


def branch_key(seed: int, parent: bytes, fork: int, ordinal: int) -> int:
    """Return the key of the tokens that are sampled for one branch."""
    return key(seed, "token", parent, fork, ordinal)


def uniforms(keys: U64, positions: U64) -> npt.NDArray[np.float64]:
    """Return a uniform number in [0, 1) for each (key, position): float64 with 53 random bits."""
    with np.errstate(over="ignore"):
        z = keys + (positions + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@lru_cache(1 << 14)  # a plan replays its tree and so repeats its draws
def _uniform(seed: int, purpose: str, parts: tuple[bytes | int, ...], position: int) -> float:
    keys = np.array([key(seed, purpose, *parts)], np.uint64)
    return float(uniforms(keys, np.array([position], np.uint64))[0])


class Draws:
    """Draws of one tree for its tree policy, each keyed by purpose and node."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, purpose: str, *parts: bytes | int, position: int = 0) -> float:
        """Return a number in [0, 1) that depends only on the arguments and the seed."""
        return _uniform(self.seed, purpose, parts, position)

    def below(self, bound: int, purpose: str, *parts: bytes | int, position: int = 0) -> int:
        """Return an integer in 0..bound-1."""
        return int(self.uniform(purpose, *parts, position=position) * bound)

    def shuffled(self, items: list[T], purpose: str, *parts: bytes | int) -> list[T]:
        """Return the items in a drawn order."""
        order = [self.uniform(purpose, *parts, position=i) for i in range(len(items))]
        return [items[i] for i in sorted(range(len(items)), key=lambda i: (order[i], i))]
