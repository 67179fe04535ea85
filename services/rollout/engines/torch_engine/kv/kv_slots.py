"""The slot cache: KV of prefixes that are prefilled together, dense, each at its own position.

There are two tensors a model, [layers, slots, kv heads, capacity, dim], so that a shared prefix is
loaded by one copy for all layers. Memory is zeroed once: masked positions must be finite.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache

from services.rollout.engines.torch_engine.kv.prefix_cache import Match


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of a model's KV.

    layers: number of layers.
    heads: kv heads of a layer.
    key_dim: numbers of a key.
    value_dim: numbers of a value.
    dtype: their type.
    device: their place.
    """

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    def zeros(self, slots: int, capacity: int, dim: int) -> torch.Tensor:
        """Return a zeroed tensor for keys or values."""
        shape = (self.layers, slots, self.heads, capacity, dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


class KvSlots:
    """KV of up to `slots` prefixes of up to `capacity` tokens."""

    def __init__(self, shape: KVShape, slots: int, capacity: int) -> None:
        self.shape, self.slots, self.capacity = shape, slots, capacity
        self.keys = shape.zeros(slots, capacity, shape.key_dim)
        self.values = shape.zeros(slots, capacity, shape.value_dim)

    @property
    def tokens(self) -> int:
        """Capacity of all slots in tokens."""
        return self.slots * self.capacity

    def load(self, slot: int, match: Match) -> None:
        """Copy a cached prefix into a slot."""
        for block, stop in match.parts:
            here, there = slice(block.start, stop), slice(0, stop - block.start)
            self.keys[:, slot, :, here] = block.keys[:, :, there]
            self.values[:, slot, :, here] = block.values[:, :, there]


class KvSlotCache(Cache):
    """The Hugging Face cache over slots: slot b, query q is written at positions_B_Q[b, q].

    Each slot sees its first `width` tokens.
    """

    def __init__(self, slots: KvSlots, positions_B_Q: torch.Tensor, width: int) -> None:
        super().__init__(layers=[])
        self._slots, self._rows, self._width = slots, positions_B_Q.shape[0], width
        heads = torch.arange(slots.shape.heads, device=positions_B_Q.device)
        rows = torch.arange(self._rows, device=positions_B_Q.device)
        flat = (rows[:, None] * slots.shape.heads + heads) * slots.capacity
        self._index = (flat[:, :, None] + positions_B_Q[:, None, :]).reshape(-1)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values, and return all that its slots see."""
        keys, values = self._slots.keys[layer_idx], self._slots.values[layer_idx]
        key_dim, value_dim = keys.shape[-1], values.shape[-1]
        keys.view(-1, key_dim).index_copy_(0, self._index, key_states.reshape(-1, key_dim))
        values.view(-1, value_dim).index_copy_(0, self._index, value_states.reshape(-1, value_dim))
        return keys[: self._rows, :, : self._width], values[: self._rows, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the cached tokens; positions are always explicit, so this only sizes buffers."""
        return self._width
