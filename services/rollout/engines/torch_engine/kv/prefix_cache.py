"""The prefix store: KV of prompts and trunks as a radix tree of pieces, so that shared tokens are held once.

A piece is a run of tokens with their KV, continuing its parent at any of the parent's tokens. Of two pieces under one
parent the (start, first token) differ, because a new piece is cut behind all that matches. What is least recently used
goes first, leaves before trunks; a piece that is pinned or has children stays. Everything goes when the policy changes.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from banyan.segment import IntTokens


@dataclass(eq=False, slots=True, weakref_slot=True)
class KvBlock:
    """Tokens start..stop of a prefix with their KV: keys and values are [layers, heads, tokens, dim]."""

    tokens_T: IntTokens
    keys: torch.Tensor
    values: torch.Tensor
    start: int
    parent: "KvBlock | None"
    children: dict[tuple[int, int], "KvBlock"] = field(default_factory=dict)
    pins: int = 0
    used: int = 0

    def __len__(self) -> int:
        return len(self.tokens_T)

    @property
    def stop(self) -> int:
        return self.start + len(self)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Pieces that cover the first `length` tokens of a prefix, each with where its part ends."""

    parts: tuple[tuple[KvBlock, int], ...]
    length: int

    def pin(self, by: int) -> None:
        """Keeps the pieces (by = 1) or lets them go (by = -1)."""
        for piece, _ in self.parts:
            piece.pins += by


class PrefixStore:
    """Radix tree of pieces with a token count."""

    def __init__(self) -> None:
        self._roots: dict[tuple[int, int], KvBlock] = {}
        self._pieces: set[KvBlock] = set()
        self._clock = 0
        self.tokens = 0

    def match(self, prefix_P: IntTokens, limit: int) -> Match:
        """The longest cover of prefix[:limit]; its pieces count as just used."""
        self._clock += 1
        parts: list[tuple[KvBlock, int]] = []
        at, children = 0, self._roots
        while at < limit:
            piece = children.get((at, int(prefix_P[at])))
            if piece is None:
                break
            piece.used = self._clock
            at = piece.start + _common(piece.tokens_T, prefix_P[piece.start : limit])
            parts.append((piece, at))
            children = piece.children
        return Match(tuple(parts), at)

    @property
    def pinned(self) -> int:
        """Tokens of pinned pieces."""
        return sum(len(piece) for piece in self._pieces if piece.pins)

    def insert(
        self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor, begin: int = 0
    ) -> None:
        """Keeps what is new of a prefix; keys and values are those of tokens `begin` and on, [layers, heads, tokens, dim],
        and are copied. Where tokens before `begin` are not there (any more), nothing is kept."""
        match = self.match(prefix_P, len(prefix_P))
        if match.length == len(prefix_P) or match.length < begin:
            return
        parent = match.parts[-1][0] if match.parts else None
        fresh = slice(match.length - begin, len(prefix_P) - begin)
        tokens = prefix_P[match.length :].copy()
        piece = KvBlock(
            tokens, keys[:, :, fresh].clone(), values[:, :, fresh].clone(), match.length, parent
        )
        piece.used = self._clock
        siblings = parent.children if parent else self._roots
        siblings[(piece.start, int(piece.tokens_T[0]))] = piece
        self._pieces.add(piece)
        self.tokens += len(piece)

    def missing(self, prefix_P: IntTokens) -> int:
        """How many tokens `insert` would add."""
        return len(prefix_P) - self.match(prefix_P, len(prefix_P)).length

    def evict(self, tokens: int) -> int:
        """Drops pieces, least recently used first, until `tokens` are free or nothing more may go; how many went."""
        freed = 0
        while freed < tokens:
            loose = [p for p in self._pieces if not p.children and not p.pins]
            if not loose:
                break
            piece = min(loose, key=lambda p: (p.used, -p.start))
            self._drop(piece)
            freed += len(piece)
        return freed

    def _drop(self, piece: KvBlock) -> None:
        siblings = piece.parent.children if piece.parent else self._roots
        del siblings[(piece.start, int(piece.tokens_T[0]))]
        self._pieces.remove(piece)
        self.tokens -= len(piece)

    def clear(self) -> None:
        """Forgets all: the KV of another policy must never be read."""
        self._roots.clear()
        self._pieces.clear()
        self.tokens = 0


def _common(a: IntTokens, b: IntTokens) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
