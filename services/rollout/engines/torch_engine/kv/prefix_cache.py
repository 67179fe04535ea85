"""The prefix cache: KV of prompts and trunks as a radix tree of blocks.

Shared tokens are stored once. A block is a run of tokens with their KV, and continues its parent at
any of the parent's tokens. Of two blocks under one parent the (start, first token) differ, because
a new block begins after all that matches. The least recently used block is evicted first, leaves
before trunks; a block that is pinned or has children stays. Everything is dropped when the policy
changes.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from banyan.segment import IntTokens


@dataclass(eq=False, slots=True, weakref_slot=True)
class KvBlock:
    """Tokens start..stop of a prefix, with their KV.

    tokens_T: the tokens.
    keys: [layers, kv heads, tokens, dim].
    values: [layers, kv heads, tokens, dim].
    start: place of the first token in the prefix.
    parent: the block that this one continues; None at the root.
    children: blocks that continue this one, by start and first token.
    pins: uses that forbid eviction.
    last_used: clock of the cache at the last match.
    """

    tokens_T: IntTokens
    keys: torch.Tensor
    values: torch.Tensor
    start: int
    parent: "KvBlock | None"
    children: dict[tuple[int, int], "KvBlock"] = field(default_factory=dict)
    pins: int = 0
    last_used: int = 0

    def __len__(self) -> int:
        return len(self.tokens_T)

    @property
    def stop(self) -> int:
        return self.start + len(self)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """The blocks that cover the beginning of a prefix.

    parts: the blocks in order, each with the place in the prefix where its part ends.
    length: tokens covered.
    """

    parts: tuple[tuple[KvBlock, int], ...]
    length: int

    def pin(self, by: int) -> None:
        """Pin the blocks (by = 1) or unpin them (by = -1)."""
        for block, _ in self.parts:
            block.pins += by


class PrefixCache:
    """A radix tree of blocks that counts its tokens."""

    def __init__(self) -> None:
        self._roots: dict[tuple[int, int], KvBlock] = {}
        self._blocks: set[KvBlock] = set()
        self._clock = 0
        self.tokens = 0

    def match(self, prefix_P: IntTokens, limit: int) -> Match:
        """Return the longest cover of prefix[:limit], and mark its blocks as just used."""
        self._clock += 1
        parts: list[tuple[KvBlock, int]] = []
        at, children = 0, self._roots
        while at < limit:
            block = children.get((at, int(prefix_P[at])))
            if block is None:
                break
            block.last_used = self._clock
            at = block.start + _common_length(block.tokens_T, prefix_P[block.start : limit])
            parts.append((block, at))
            children = block.children
        return Match(tuple(parts), at)

    @property
    def pinned(self) -> int:
        """Tokens of pinned blocks."""
        return sum(len(block) for block in self._blocks if block.pins)

    def insert(
        self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor, begin: int = 0
    ) -> None:
        """Cache a copy of the uncached part of a prefix.

        Keys and values, [layers, kv heads, tokens, dim], begin at token `begin`. Nothing is cached
        where tokens before `begin` are missing (by now).
        """
        match = self.match(prefix_P, len(prefix_P))
        if match.length == len(prefix_P) or match.length < begin:
            return
        parent = match.parts[-1][0] if match.parts else None
        uncached = slice(match.length - begin, len(prefix_P) - begin)
        block = KvBlock(
            tokens_T=prefix_P[match.length :].copy(),
            keys=keys[:, :, uncached].clone(),
            values=values[:, :, uncached].clone(),
            start=match.length,
            parent=parent,
            last_used=self._clock,
        )
        siblings = parent.children if parent else self._roots
        siblings[(block.start, int(block.tokens_T[0]))] = block
        self._blocks.add(block)
        self.tokens += len(block)

    def missing(self, prefix_P: IntTokens) -> int:
        """Return the number of tokens that `insert` would add."""
        return len(prefix_P) - self.match(prefix_P, len(prefix_P)).length

    def evict(self, tokens: int) -> int:
        """Drop blocks until `tokens` are free or no block may go; return the tokens freed."""
        freed = 0
        while freed < tokens:
            evictable = [b for b in self._blocks if not b.children and not b.pins]
            if not evictable:
                break
            block = min(evictable, key=lambda b: (b.last_used, -b.start))
            self._drop(block)
            freed += len(block)
        return freed

    def _drop(self, block: KvBlock) -> None:
        siblings = block.parent.children if block.parent else self._roots
        del siblings[(block.start, int(block.tokens_T[0]))]
        self._blocks.remove(block)
        self.tokens -= len(block)

    def clear(self) -> None:
        """Drop everything: the KV of another policy must never be read."""
        self._roots.clear()
        self._blocks.clear()
        self.tokens = 0


def _common_length(a: IntTokens, b: IntTokens) -> int:
    shorter = min(len(a), len(b))
    differ = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differ[0]) if len(differ) else shorter
