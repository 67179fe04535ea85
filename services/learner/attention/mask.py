"""Visibility of the tokens of a packed sequence, shared by all methods of tree attention.

Masks are made once per sequence and window.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from services.learner.attention import matmuls
from services.learner.attention.cost_model import AttentionMethod, choose
from services.learner.attention.matmuls import Matmuls
from services.learner.attention.node_attention import PreparedMatmuls
from services.learner.packing import node_spans
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import Ints


class TokenIntervals(NamedTuple):
    """[tokens] each: the node, the last node below it, and the position on the path."""

    enter: torch.Tensor
    leave: torch.Tensor
    position: torch.Tensor


class TreeMask:
    """A sequence's masks, its products node by node, and the cheapest attention method for it.

    Masks are additive: 0 where the row of the mask attends to the column, −inf elsewhere. A window
    of None has no end.
    """

    def __init__(self, sequence: PackedSequence, dtype: torch.dtype, device: torch.device) -> None:
        self.trunk = sequence.trunk
        self.sizes = [stop - start for start, stop in sequence.blocks]
        self.longest = max(self.sizes, default=0)
        self.intervals = TokenIntervals(
            enter=torch.from_numpy(sequence.enter_U).to(device),
            leave=torch.from_numpy(sequence.leave_U).to(device),
            position=torch.from_numpy(sequence.position_U).to(device),
        )
        self._deepest = int(sequence.position_U.max(initial=-1)) + 1
        self._sequence, self._dtype = sequence, dtype
        self._cache: dict[tuple[str, int | None], Any] = {}

    def window(self, window: int | None) -> int | None:
        """Return the window, or None if all paths are shorter."""
        return window if window is not None and window < self._deepest else None

    def method(self, window: int | None, fusible: bool) -> AttentionMethod:
        """Return the method for a layer with this window.

        fusible: a fused kernel computes the scores of the layer.
        """
        if self.intervals.position.is_cuda:
            return AttentionMethod.BLOCK_MASK
        unmasked = window is None and fusible
        method: AttentionMethod = self.cached(
            _method_key(unmasked),
            None,
            lambda _: choose(self._sequence, self.matmuls() if unmasked else None),
        )
        return method

    def force(self, *, unmasked: AttentionMethod, masked: AttentionMethod) -> None:
        """Fix the methods instead of choosing them.

        unmasked: of layers that a fused kernel computes without a mask.
        masked: of all others.
        """
        self._cache[_method_key(True), None] = unmasked
        self._cache[_method_key(False), None] = masked

    def matmuls(self) -> Matmuls:
        """Return the products node by node."""
        planned: Matmuls = self.cached(
            "matmuls", None, lambda _: matmuls.plan(node_spans.spans(self._sequence))
        )
        return planned

    def prepared_matmuls(self) -> PreparedMatmuls:
        """Return the products node by node, as the kernel takes them."""
        prepared: PreparedMatmuls = self.cached(
            "prepared matmuls", None, lambda _: PreparedMatmuls(self.matmuls())
        )
        return prepared

    @property
    def end_U(self) -> Ints:
        """The place behind the subtree of each token, which attends to it."""
        end_U = np.zeros(len(self._sequence.token_U), np.int64)
        for span in node_spans.spans(self._sequence):
            end_U[span.start : span.stop] = span.end
        return end_U

    @property
    def position_U(self) -> Ints:
        """The position of each token on its path."""
        return self._sequence.position_U

    def cached(self, kind: str, window: int | None, make: Callable[[int | None], Any]) -> Any:
        """Return what `make` returns for the window, made once: all layers of a kind share it."""
        if (kind, window) not in self._cache:
            self._cache[kind, window] = make(window)
        return self._cache[kind, window]

    def of_trunk(self, window: int | None) -> torch.Tensor:
        """Return the mask of the trunk: [trunk, trunk]."""
        mask: torch.Tensor = self.cached("trunk", window, self._trunk)
        return mask

    def blocks(self, window: int | None) -> list[torch.Tensor]:
        """Return a mask [n, trunk + n] for each block."""
        masks: list[torch.Tensor] = self.cached("blocks", window, self._blocks)
        return masks

    def padded(self, window: int | None) -> torch.Tensor:
        """Return the masks of all blocks as [blocks, 1, longest, trunk + longest].

        Padding attends to one token, and nothing attends to padding.
        """
        mask: torch.Tensor = self.cached("padded", window, self._padded)
        return mask

    def _trunk(self, window: int | None) -> torch.Tensor:
        position = self.intervals.position[: self.trunk]
        order = torch.arange(self.trunk, device=position.device)
        causal = order[None] <= order[:, None]
        return self._additive(within_window(causal, position, position, window))

    def _blocks(self, window: int | None) -> list[torch.Tensor]:
        sizes = [self.trunk, *self.sizes]
        enters, leaves, positions = (torch.split_with_sizes(x, sizes) for x in self.intervals)
        trunk = positions[0]
        masks = []
        for enter, leave, position in zip(enters[1:], leaves[1:], positions[1:], strict=True):
            above = within_window(all_visible(position, trunk), position, trunk, window)
            own = within_window(visible(enter, leave), position, position, window)
            masks.append(self._additive(torch.cat([above, own], dim=1)))
        return masks

    def _padded(self, window: int | None) -> torch.Tensor:
        masks = self.blocks(window)
        wide = torch.promote_types(self._dtype, torch.float32)
        shape = (len(masks), 1, self.longest, self.trunk + self.longest)
        padded = torch.full(shape, float("-inf"), dtype=wide, device=masks[0].device)
        padded[:, :, :, 0] = 0.0
        for at, mask in enumerate(masks):
            padded[at, 0, : mask.shape[0], : mask.shape[1]] = mask
        return padded

    def _additive(self, visible: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(visible.shape, dtype=self._dtype, device=visible.device)
        return zeros.masked_fill_(~visible, float("-inf"))


def _method_key(unmasked: bool) -> str:
    return "method, unmasked" if unmasked else "method, masked"


def within_window(
    visible: torch.Tensor, query: torch.Tensor, key: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Limit `visible` [n, m], in place, to keys within the window of the query.

    query, key: positions [n], [m]. Comparing with a bound per query makes no matrix of distances,
    which would take eight bytes a pair.
    """
    if window is None:
        return visible
    return visible.logical_and_(key[None, :] > (query - window)[:, None])


def all_visible(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return [n, m]: every one of n queries attends to every one of m keys."""
    return torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)


def visible(enter: torch.Tensor, leave: torch.Tensor) -> torch.Tensor:
    """Return [n, n]: i attends to j, if j is not behind i and its node is that of i or above."""
    order = torch.arange(len(enter), device=enter.device)
    causal = order[None, :] <= order[:, None]
    return causal & (enter[None, :] <= enter[:, None]) & (enter[:, None] <= leave[None, :])
