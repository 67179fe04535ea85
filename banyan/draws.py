"""Counter-based randomness: a draw is keyed by what it is for, never by call count (DESIGN 6).

So neither batch mates nor resumption change a draw. Keys are 64-bit digests; draws are splitmix64 of key and position.
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
    """64-bit key of a stream of draws: a seed, what the draws are for, and the node or branch they belong to."""
    data = [
        packed(p if isinstance(p, bytes) else p.to_bytes(8, "little", signed=True)) for p in parts
    ]
    return int.from_bytes(
        blake(seed.to_bytes(8, "little", signed=False), packed(purpose.encode()), *data)[:8],
        "little",
    )


def branch_key(seed: int, parent: bytes, fork: int, ordinal: int) -> int:
    """Key of the tokens that are sampled for one branch."""
    return key(seed, "token", parent, fork, ordinal)


def uniforms(keys: U64, positions: U64) -> npt.NDArray[np.float64]:
    """One uniform number in [0, 1) per (key, position), element-wise: float64 with 53 random bits."""
    with np.errstate(over="ignore"):
        z = keys + (positions + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@lru_cache(1 << 14)  # a plan replays its tree, so it draws the same numbers again
def _uniform(seed: int, purpose: str, parts: tuple[bytes | int, ...], position: int) -> float:
    keys = np.array([key(seed, purpose, *parts)], np.uint64)
    return float(uniforms(keys, np.array([position], np.uint64))[0])


class Draws:
    """Draws of one tree for its tree policy: `uniform`, `below` and `shuffled`, each keyed by purpose and node."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, purpose: str, *parts: bytes | int, position: int = 0) -> float:
        """A number in [0, 1) that depends only on its arguments and the seed."""
        return _uniform(self.seed, purpose, parts, position)

    def below(self, bound: int, purpose: str, *parts: bytes | int, position: int = 0) -> int:
        """An integer in 0..bound-1."""
        return int(self.uniform(purpose, *parts, position=position) * bound)

    def shuffled(self, items: list[T], purpose: str, *parts: bytes | int) -> list[T]:
        """The items in a drawn order."""
        order = [self.uniform(purpose, *parts, position=i) for i in range(len(items))]
        return [
            item
            for _, _, item in sorted(
                zip(order, range(len(items)), items, strict=True), key=lambda t: t[:2]
            )
        ]
