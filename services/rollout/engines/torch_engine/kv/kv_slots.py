"""The slot cache: KV of prefixes that are prefilled together, dense per row, with each row written at its own position.

Two tensors per model, [layers, slots, kv heads, capacity, dim], so that loading a shared prefix is one copy for all
layers. Memory is zeroed once: masked positions must be finite.
"""

from typing import Any

import torch
from transformers import Cache

from services.rollout.engines.torch_engine.kv.prefix_cache import Match


class Slots:
    """KV of up to `slots` rows of up to `capacity` tokens."""

    def __init__(self, shape: "KVShape", slots: int, capacity: int) -> None:
        self.shape, self.slots, self.capacity = shape, slots, capacity
        self.keys = shape.zeros(slots, capacity, shape.key_dim)
        self.values = shape.zeros(slots, capacity, shape.value_dim)

    @property
    def tokens(self) -> int:
        """Tokens that fit."""
        return self.slots * self.capacity

    def load(self, row: int, match: Match) -> None:
        """Copies a cached prefix into a row."""
        for piece, stop in match.parts:
            here, there = slice(piece.start, stop), slice(0, stop - piece.start)
            self.keys[:, row, :, here] = piece.keys[:, :, there]
            self.values[:, row, :, here] = piece.values[:, :, there]


class KVShape:
    """What a model keeps per token: layers, kv heads, dimensions, type and device."""

    def __init__(
        self,
        layers: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers, self.heads, self.key_dim, self.value_dim = layers, heads, key_dim, value_dim
        self.dtype, self.device = dtype, device

    def zeros(self, slots: int, capacity: int, dim: int) -> torch.Tensor:
        """A zeroed tensor for keys or values."""
        return torch.zeros(
            self.layers, slots, self.heads, capacity, dim, dtype=self.dtype, device=self.device
        )


class SlotCache(Cache):
    """What a Hugging Face model writes to: row b, query q goes to positions_B_Q[b, q]; it sees `width` tokens."""

    def __init__(self, slots: Slots, positions_B_Q: torch.Tensor, width: int) -> None:
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
        """Writes a layer's new keys and values; returns all that its rows see."""
        keys, values = self._slots.keys[layer_idx], self._slots.values[layer_idx]
        keys.view(-1, keys.shape[-1]).index_copy_(
            0, self._index, key_states.reshape(-1, keys.shape[-1])
        )
        values.view(-1, values.shape[-1]).index_copy_(
            0, self._index, value_states.reshape(-1, values.shape[-1])
        )
        return keys[: self._rows, :, : self._width], values[: self._rows, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen; positions are always given explicitly, so this only sizes buffers."""
        return self._width
