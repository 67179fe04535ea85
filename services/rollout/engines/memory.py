"""Keeps slots and prefix store together within kv_tokens: slots first, kept prefixes in what is left."""

from dataclasses import dataclass
from weakref import WeakSet

import torch

from banyan.segment import IntTokens
from services.rollout.engines.prefixes import Match, Piece, PrefixStore
from services.rollout.engines.slots import KVShape, Slots


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an engine. deterministic: fixed decode shapes, never a batch of one. context: longest path, 0 for any.

    share_from: KV tokens that a step must save for each block that its branches share; a block costs each layer some calls.
    """

    kv_tokens: int = 65_536
    max_branches: int = 64
    prefill_tokens: int = 4096
    deterministic: bool = False
    context: int = 0
    share_from: int = 1024

    def rows(self, rows: int) -> int:
        """Rows of a decode batch."""
        return -(-rows // 8) * 8 if self.deterministic else rows

    def width(self, tokens: int) -> int:
        """Tokens that a decode batch attends to: few shapes, so that kernels are made once."""
        step = 64 if self.deterministic else 16
        return -(-tokens // step) * step


class Memory:
    """The KV memory of an engine."""

    def __init__(self, shape: KVShape, limits: Limits) -> None:
        self.limits = limits
        self.store = PrefixStore()
        self.slots = Slots(shape, 0, 0)
        self._alone: WeakSet[Piece] = WeakSet()  # of prefixes in use that the store had no room for

    @property
    def tokens(self) -> int:
        """Tokens of KV held."""
        return self.slots.tokens + self.store.tokens + self._apart

    @property
    def _apart(self) -> int:
        return sum(len(piece) for piece in self._alone)

    def fits(self, rows: int, need: int, pinned: int) -> bool:
        """Whether `rows` rows of at most `need` tokens fit beside `pinned` tokens of prefixes in use."""
        return self.limits.rows(rows) * self.limits.width(need) + pinned <= self.limits.kv_tokens

    def make_room(self, rows: int, need: int, live_rows: int, live_tokens: int, pinned: int) -> None:
        """Sizes the slots for `rows` rows of `need` tokens, keeping what is live, and evicts prefixes for them.

        pinned: tokens of prefixes that will be in use then.
        """
        slots, capacity = self.limits.rows(rows), self.limits.width(need)
        enough = slots <= self.slots.slots and capacity <= self.slots.capacity
        if not enough or self.slots.tokens > self.limits.kv_tokens - max(self.store.tokens + self._apart, pinned):
            ample = min(self.limits.rows(self.limits.max_branches), 2 * slots)
            spare = min(self.limits.kv_tokens // 2, self.limits.kv_tokens - pinned)
            slots = ample if ample * capacity <= spare else slots
            self.slots = self.slots.resized(slots, capacity, live_rows, live_tokens)
        self.store.evict(self.tokens - self.limits.kv_tokens)

    @property
    def pinned(self) -> int:
        """Tokens of prefixes in use."""
        return self.store.pinned + self._apart

    def worth_sharing(self, prefix_P: IntTokens, branches: int) -> bool:
        """Whether branches do better to attend to their prefix where it is kept than to have a copy each."""
        blocks = len(self.store.match(prefix_P, len(prefix_P)).parts) + 1
        saved = (branches - 1) * len(prefix_P)
        return not self.limits.deterministic and saved >= self.limits.share_from * blocks

    def hold(self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor) -> Match:
        """Keeps a prefix, and says where it is. Without room in the store it has a block of its own."""
        self.keep(prefix_P, keys, values)
        match = self.store.match(prefix_P, len(prefix_P))
        if match.length == len(prefix_P):
            return match
        alone = Piece(prefix_P, keys.clone(), values.clone(), 0, None)
        self._alone.add(alone)
        return Match(((alone, len(prefix_P)),), len(prefix_P))

    def keep(self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor, begin: int = 0) -> None:
        """Puts a prefix, whose KV is given from token `begin` on, into the store if there is, or can be made, room."""
        short = self.tokens + self.store.missing(prefix_P) - self.limits.kv_tokens
        if short <= 0 or self.store.evict(short) >= short:
            self.store.insert(prefix_P, keys, values, begin)
