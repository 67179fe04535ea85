"""A prefix that is too long for one prefill pass: computed a chunk a step, so that running branches are not stalled."""

from dataclasses import dataclass

import torch

from banyan.segment import IntTokens
from services.rollout.engines.port import Key, Request
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Memory
from services.rollout.engines.torch_engine.kv.kv_slots import Slots
from services.rollout.engines.torch_engine.scheduling.admission import Group
from services.rollout.engines.torch_engine.scheduling.branches import room


@dataclass(eq=False, slots=True)
class Filling:
    """A group whose branches begin when its prefix is through. `done` of its tokens are in the spare slot."""

    group: Group
    spare: Slots
    done: int

    @classmethod
    def of(cls, group: Group, memory: Memory) -> "Filling":
        """Begins with what is cached of the prefix."""
        spare = memory.spare(room(group.prefix_P))
        spare.load(0, group.match)
        group.match.pin(-1)
        return cls(group, spare, group.match.length)

    def go_on(self, forward: Forward, tokens: int) -> torch.Tensor | None:
        """Computes up to `tokens` more; the logits after the last one when it is through."""
        upto = min(self.done + tokens, len(self.group.prefix_P))
        logits = forward.prefill(self.spare, [self.group.prefix_P[:upto]], [self.done])
        self.done = upto
        return logits if upto == len(self.group.prefix_P) else None

    def shares(self, prefix_P: IntTokens) -> bool:
        """Whether a prefix begins with fresh tokens of this one, so that it should wait for them."""
        return self.group.shares(prefix_P)

    def drop(self, key: Key) -> Request | None:
        """Takes a request out, if it is one of these."""
        for request in self.group.requests:
            if request.key == key:
                self.group.requests.remove(request)
                return request
        return None
