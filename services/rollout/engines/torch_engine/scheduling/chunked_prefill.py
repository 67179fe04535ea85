"""Prefill of a long prefix, one chunk a step, so that running branches do not stall."""

from dataclasses import dataclass

import torch

from banyan.segment import IntTokens
from services.rollout.engines.port import Key, Request
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget
from services.rollout.engines.torch_engine.kv.kv_slots import KvSlots
from services.rollout.engines.torch_engine.scheduling.admission import Group
from services.rollout.engines.torch_engine.scheduling.branches import slot_capacity


@dataclass(eq=False, slots=True)
class ChunkedPrefill:
    """A group whose branches begin when its prefix is computed.

    group: the requests.
    slots: one slot for the prefix.
    done: tokens of the prefix that are in the slot.
    """

    group: Group
    slots: KvSlots
    done: int

    @classmethod
    def of(cls, group: Group, kv_budget: KvBudget) -> "ChunkedPrefill":
        """Begin with the cached part of the prefix."""
        slots = kv_budget.prefill_slot(slot_capacity(group.prefix_P))
        slots.load(0, group.match)
        group.match.pin(-1)
        return cls(group, slots, group.match.length)

    def advance(self, forward: Forward, tokens: int) -> torch.Tensor | None:
        """Compute up to `tokens` more, and return the last token's logits at the end."""
        end = min(self.done + tokens, len(self.group.prefix_P))
        logits = forward.prefill(self.slots, [self.group.prefix_P[:end]], [self.done])
        self.done = end
        return logits if end == len(self.group.prefix_P) else None

    def shares(self, prefix_P: IntTokens) -> bool:
        """Return whether a prefix should wait for this one, with whose fresh tokens it begins."""
        return self.group.shares(prefix_P)

    def drop(self, key: Key) -> Request | None:
        """Remove and return a request, if it is in the group."""
        for request in self.group.requests:
            if request.key == key:
                self.group.requests.remove(request)
                return request
        return None
