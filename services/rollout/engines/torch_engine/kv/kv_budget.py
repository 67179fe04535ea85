"""The KV budget: pages and prefix cache together stay within kv_tokens.

Pages of running branches come first; cached prefixes have what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakSet

import torch

from banyan.segment import IntTokens
from services.rollout.engines.torch_engine.kv.kv_slots import KVShape, KvSlots
from services.rollout.engines.torch_engine.kv.pages import Pages
from services.rollout.engines.torch_engine.kv.prefix_cache import KvBlock, Match, PrefixCache
from services.rollout.engines.torch_engine.paged_attention import Bucketing

_SHRINK_FACTOR = 4  # the pool shrinks once it has this many times the claimed pages
_SHARE_FROM = 1024  # tokens
_DETERMINISTIC_ROWS = 8  # decode batches are padded to a multiple of it
_DETERMINISTIC_TOKENS = 64  # widths of buckets are a multiple of it


def share_from(device: torch.device, kv_tokens: int) -> int:
    """Return Limits.share_from for a device.

    On CUDA a call costs more than copies, and only a pass without shared trunks is a graph
    (cuda/graphs.py): branches share where the copies of one trunk would not fit into kv_tokens.
    """
    return max(_SHARE_FROM, kv_tokens) if device.type == "cuda" else _SHARE_FROM


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an engine.

    kv_tokens: capacity of the KV memory, in tokens.
    max_branches: branches that run at once.
    prefill_tokens: tokens of a prefill pass.
    deterministic: fixed decode shapes, never a batch of one.
    context: tokens of the longest path, 0 for any.
    share_from: KV tokens that a step must save for each block that its branches share; a block
        costs each layer some calls.
    page_tokens: tokens of a page.
    waste: padding of a bucket in tokens, see Bucketing.
    ahead: tokens set aside for the growth of a branch; one that samples more may be paused.
    patience: requests that may begin before an earlier one that does not fit, before all wait
        for it.
    """

    kv_tokens: int = 65_536
    max_branches: int = 64
    prefill_tokens: int = 4096
    deterministic: bool = False
    context: int = 0
    share_from: int = _SHARE_FROM
    page_tokens: int = 16
    waste: int = 512
    ahead: int = 256
    patience: int = 256

    def rows(self, rows: int) -> int:
        """Return the rows of a decode batch of so many branches."""
        if not self.deterministic:
            return rows
        return -(-rows // _DETERMINISTIC_ROWS) * _DETERMINISTIC_ROWS

    @property
    def bucketing(self) -> Bucketing:
        """The rules by which decode rows are put into buckets that attend together."""
        multiple = -(-_DETERMINISTIC_TOKENS // self.page_tokens) if self.deterministic else 1
        return Bucketing(waste=self.waste, multiple=multiple, fixed=self.deterministic)


class KvBudget:
    """The KV memory of an engine."""

    def __init__(self, shape: KVShape, limits: Limits) -> None:
        self.limits, self._shape = limits, shape
        self.prefix_cache = PrefixCache()
        self.pages = Pages(shape, limits.page_tokens)
        # Tokens of prefixes that will be in use at the end of the current step.
        self._due = 0
        # Blocks of prefixes in use for which the prefix cache had no capacity.
        self._uncached: WeakSet[KvBlock] = WeakSet()
        # Slots of prefixes that are computed one chunk a step.
        self._prefill_slots: WeakSet[KvSlots] = WeakSet()

    @property
    def tokens(self) -> int:
        """Tokens of KV in memory."""
        return self.pages.tokens + self.prefix_cache.tokens + self._outside_cache

    @property
    def _outside_cache(self) -> int:
        uncached = sum(len(block) for block in self._uncached)
        return uncached + sum(slots.tokens for slots in self._prefill_slots)

    @property
    def pinned(self) -> int:
        """Tokens of prefixes in use."""
        return self.prefix_cache.pinned + self._outside_cache

    def claim(self, need: int, written: int) -> int:
        """Return the pages to set aside for a branch that may come to `need` tokens."""
        return self.pages.of(min(need, written + self.limits.ahead))

    def fits(self, claimed: int, pinned: int) -> bool:
        """Return whether so many pages fit beside `pinned` tokens of prefixes in use."""
        return (claimed + 1) * self.limits.page_tokens + pinned <= self.limits.kv_tokens

    def trim(self) -> None:
        """Evict, after a step, the prefixes that do not fit beside the running branches."""
        self._due = 0
        self.prefix_cache.evict(self.tokens - self.limits.kv_tokens)

    def settle(self, claimed: int, pinned: int, tables: Sequence[list[int]]) -> None:
        """Shrink the pool, then evict the prefixes that do not fit beside it.

        The pool shrinks where `pinned` tokens of prefixes need its memory, or where it is far
        larger than the claimed pages. It takes none of that memory back until `trim`.
        """
        self._due = max(self._due, pinned)
        used = sum(len(table) for table in tables)
        most = (self.limits.kv_tokens - pinned) // self.limits.page_tokens
        count = self.pages.count
        ample = 2 * (claimed + 1) if count > _SHRINK_FACTOR * (claimed + 1) else count
        count = max(used + 1, min(most, ample, count))
        if count < self.pages.count:
            self.pages = self.pages.resized(count, tables)
        self.prefix_cache.evict(self.tokens - self.limits.kv_tokens)

    def provide(self, pages: int, tables: Sequence[list[int]], anyway: bool = False) -> bool:
        """Make so many pages free, and evict prefixes for them.

        Return False where kv_tokens does not suffice, unless `anyway`.
        """
        least = self.pages.count + pages - self.pages.free
        if least <= self.pages.count:
            return True
        page_tokens, kv_tokens = self.limits.page_tokens, self.limits.kv_tokens
        most = (kv_tokens - max(self.pinned, self._due)) // page_tokens
        if least > most and not anyway:
            return False
        ample = min(2 * self.pages.count, most, kv_tokens // 2 // page_tokens)
        count = max(least, ample)
        growth = (count - self.pages.count) * page_tokens
        self.prefix_cache.evict(self.tokens + growth - kv_tokens)
        self.pages = self.pages.resized(count, tables)
        return True

    def prefill_slot(self, tokens: int) -> KvSlots:
        """Return a slot for a prefix that is computed one chunk a step.

        It counts until it is released or garbage-collected.
        """
        slots = KvSlots(self._shape, 1, tokens)
        self._prefill_slots.add(slots)
        return slots

    def release(self, slots: KvSlots) -> None:
        """Count a slot no longer: its prefix moves to where it is kept, or is dropped."""
        self._prefill_slots.discard(slots)

    def worth_sharing(self, prefix_P: IntTokens, branches: int) -> bool:
        """Return whether branches should share the KV of their prefix rather than copy it."""
        blocks = len(self.prefix_cache.match(prefix_P, len(prefix_P)).parts) + 1
        saved = (branches - 1) * len(prefix_P)
        return not self.limits.deterministic and saved >= self.limits.share_from * blocks

    def hold(self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor) -> Match:
        """Keep a prefix and return its place.

        It has a block of its own where the prefix cache has no capacity.
        """
        self.keep(prefix_P, keys, values)
        match = self.prefix_cache.match(prefix_P, len(prefix_P))
        if match.length == len(prefix_P):
            return match
        block = KvBlock(
            tokens_T=prefix_P, keys=keys.clone(), values=values.clone(), start=0, parent=None
        )
        self._uncached.add(block)
        return Match(((block, len(prefix_P)),), len(prefix_P))

    def keep(
        self, prefix_P: IntTokens, keys: torch.Tensor, values: torch.Tensor, begin: int = 0
    ) -> None:
        """Cache a prefix, whose KV begins at token `begin`, if it fits or can be made to fit."""
        short = self.tokens + self.prefix_cache.missing(prefix_P) - self.limits.kv_tokens
        if short <= 0 or self.prefix_cache.evict(short) >= short:
            self.prefix_cache.insert(prefix_P, keys, values, begin)
