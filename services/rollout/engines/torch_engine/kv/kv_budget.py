"""Keeps pages and prefix store together within kv_tokens: pages of running rows first, kept prefixes in what is left."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakSet

import torch

from banyan.segment import IntTokens
from services.rollout.engines.torch_engine.kv.kv_slots import KVShape, Slots
from services.rollout.engines.torch_engine.kv.pages import Pages
from services.rollout.engines.torch_engine.kv.prefix_cache import KvBlock, Match, PrefixStore
from services.rollout.engines.torch_engine.paged_attention import Cuts

_IDLE = 4  # pages held over pages claimed, from which on the pool is made smaller


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an engine. deterministic: fixed decode shapes, never a batch of one. context: longest path, 0 for any.

    share_from: KV tokens that a step must save for each block that its branches share; a block costs each layer some calls.
    page_tokens: tokens of a page. waste: see Cuts. ahead: tokens set aside for what a branch will sample; one that samples
    more may be paused. patience: requests that may begin before an earlier one that does not fit, before all wait for it.
    """

    kv_tokens: int = 65_536
    max_branches: int = 64
    prefill_tokens: int = 4096
    deterministic: bool = False
    context: int = 0
    share_from: int = 1024
    page_tokens: int = 16
    waste: int = 512
    ahead: int = 256
    patience: int = 256

    def rows(self, rows: int) -> int:
        """Rows of a decode batch."""
        return -(-rows // 8) * 8 if self.deterministic else rows

    @property
    def cuts(self) -> Cuts:
        """How rows are put into buckets that attend together."""
        return Cuts(self.waste, -(-64 // self.page_tokens) if self.deterministic else 1)


class Memory:
    """The KV memory of an engine."""

    def __init__(self, shape: KVShape, limits: Limits) -> None:
        self.limits, self._shape = limits, shape
        self.store = PrefixStore()
        self.pages = Pages(shape, limits.page_tokens)
        self._due = 0  # tokens of prefixes that will be in use when a step is through
        self._alone: WeakSet[KvBlock] = (
            WeakSet()
        )  # of prefixes in use that the store had no room for
        self._spares: WeakSet[Slots] = WeakSet()  # of prefixes that are computed a chunk a step

    @property
    def tokens(self) -> int:
        """Tokens of KV held."""
        return self.pages.tokens + self.store.tokens + self._apart

    @property
    def _apart(self) -> int:
        return sum(len(piece) for piece in self._alone) + sum(
            spare.tokens for spare in self._spares
        )

    @property
    def pinned(self) -> int:
        """Tokens of prefixes in use."""
        return self.store.pinned + self._apart

    def claim(self, need: int, held: int) -> int:
        """Pages set aside for a row that may come to `need` tokens and has `held`."""
        return self.pages.of(min(need, held + self.limits.ahead))

    def fits(self, claimed: int, pinned: int) -> bool:
        """Whether so many pages fit beside `pinned` tokens of prefixes in use."""
        return (claimed + 1) * self.limits.page_tokens + pinned <= self.limits.kv_tokens

    def trim(self) -> None:
        """After a step: evicts what has no room beside all that runs now."""
        self._due = 0
        self.store.evict(self.tokens - self.limits.kv_tokens)

    def settle(self, claimed: int, pinned: int, tables: Sequence[list[int]]) -> None:
        """Makes the pool smaller where `pinned` tokens of prefixes need its room, or where it is far larger than what is
        claimed; then evicts prefixes that have no room beside it. Until `trim` the pool takes none of that room."""
        self._due = max(self._due, pinned)
        used = sum(len(table) for table in tables)
        most = (self.limits.kv_tokens - pinned) // self.limits.page_tokens
        idle = 2 * (claimed + 1) if self.pages.count > _IDLE * (claimed + 1) else self.pages.count
        count = max(used + 1, min(most, idle, self.pages.count))
        if count < self.pages.count:
            self.pages = self.pages.resized(count, tables)
        self.store.evict(self.tokens - self.limits.kv_tokens)

    def provide(self, pages: int, tables: Sequence[list[int]], anyway: bool = False) -> bool:
        """Makes so many pages free, evicting prefixes for them; False where kv_tokens leaves no room, unless `anyway`."""
        least = self.pages.count + pages - self.pages.free
        if least <= self.pages.count:
            return True
        most = (self.limits.kv_tokens - max(self.pinned, self._due)) // self.limits.page_tokens
        if least > most and not anyway:
            return False
        ample = min(
            2 * self.pages.count, most, self.limits.kv_tokens // 2 // self.limits.page_tokens
        )
        count = max(least, ample)
        self.store.evict(
            self.tokens
            + (count - self.pages.count) * self.limits.page_tokens
            - self.limits.kv_tokens
        )
        self.pages = self.pages.resized(count, tables)
        return True

    def spare(self, tokens: int) -> Slots:
        """Room for a prefix that is computed a chunk a step; counted until `taken` or forgotten."""
        spare = Slots(self._shape, 1, tokens)
        self._spares.add(spare)
        return spare

    def taken(self, spare: Slots) -> None:
        """Counts it no longer: its prefix goes to where it is kept, or is given up."""
        self._spares.discard(spare)

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
        alone = KvBlock(prefix_P, keys.clone(), values.clone(), 0, None)
        self._alone.add(alone)
        return Match(((alone, len(prefix_P)),), len(prefix_P))

    def keep(
        self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor, begin: int = 0
    ) -> None:
        """Puts a prefix, whose KV is given from token `begin` on, into the store if there is, or can be made, room."""
        short = self.tokens + self.store.missing(prefix_P) - self.limits.kv_tokens
        if short <= 0 or self.store.evict(short) >= short:
            self.store.insert(prefix_P, keys, values, begin)
