"""Who sees whom in a row: what every way of tree attention asks. Masks are made once a row and window."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from services.learner.attention import matmuls as calls
from services.learner.attention.cost_model import Way, choose
from services.learner.attention.matmuls import Calls
from services.learner.attention.node_attention import Products
from services.learner.packing import node_spans
from services.learner.packing.packing import PackedSequence


class TokenIntervals(NamedTuple):
    """[n] each, of tokens: the node, the last node below it, and the position on the path."""

    enter: torch.Tensor
    leave: torch.Tensor
    position: torch.Tensor


class TreeMask:
    """A row's masks, its products node by node, and which way to attend is the cheapest for it.

    Masks are additive: 0 where the row sees the column, −inf elsewhere. A window of None has no end.
    """

    def __init__(self, row: PackedSequence, dtype: torch.dtype, device: torch.device) -> None:
        self.trunk = row.trunk
        self.sizes = [stop - start for start, stop in row.blocks]
        self.longest = max(self.sizes, default=0)
        self.facts = TokenIntervals(
            *(torch.from_numpy(a).to(device) for a in (row.enter_N, row.leave_N, row.position_N))
        )
        self._deepest = int(row.position_N.max(initial=-1)) + 1
        self._row, self._dtype = row, dtype
        self._made: dict[tuple[str, int | None], Any] = {}

    def window(self, given: int | None) -> int | None:
        """The window, or None where all paths are shorter."""
        return given if given is not None and given < self._deepest else None

    def way(self, window: int | None, odd: bool) -> Way:
        """How to attend in a layer with this window, and whose scores no fused kernel computes if they are odd."""
        if self.facts.position.is_cuda:
            return Way.BLOCK_MASK
        masked = window is not None or odd
        chosen: Way = self.once(
            f"way {masked}", None, lambda _: choose(self._row, None if masked else self.calls())
        )
        return chosen

    def take(self, fused: Way, masked: Way) -> None:
        """Makes layers attend in a way of somebody else's choice: those that a fused kernel computes whole, and others."""
        self._made["way False", None], self._made["way True", None] = fused, masked

    def calls(self) -> Calls:
        """The products node by node."""
        made: Calls = self.once("calls", None, lambda _: calls.calls(node_spans.spans(self._row)))
        return made

    def products(self) -> Products:
        """The same as the kernel takes them."""
        made: Products = self.once("products", None, lambda _: Products(self.calls()))
        return made

    def once(self, kind: str, window: int | None, make: Callable[[int | None], Any]) -> Any:
        """What `make` makes of the window: all layers of a kind share it."""
        if (kind, window) not in self._made:
            self._made[kind, window] = make(window)
        return self._made[kind, window]

    def of_trunk(self, window: int | None) -> torch.Tensor:
        """[trunk, trunk]."""
        mask: torch.Tensor = self.once("trunk", window, self._trunk)
        return mask

    def blocks(self, window: int | None) -> list[torch.Tensor]:
        """One [n, trunk + n] a block."""
        masks: list[torch.Tensor] = self.once("blocks", window, self._blocks)
        return masks

    def padded(self, window: int | None) -> torch.Tensor:
        """The blocks as [blocks, 1, longest, trunk + longest]; padding sees one token, and nothing sees padding."""
        mask: torch.Tensor = self.once("padded", window, self._padded)
        return mask

    def _trunk(self, window: int | None) -> torch.Tensor:
        position = self.facts.position[: self.trunk]
        order = torch.arange(self.trunk, device=position.device)
        return self._additive(near(order[None] <= order[:, None], position, position, window))

    def _blocks(self, window: int | None) -> list[torch.Tensor]:
        cut = [torch.split_with_sizes(fact, [self.trunk, *self.sizes]) for fact in self.facts]
        above = cut[2][0]
        return [
            self._additive(
                torch.cat(
                    [near(all_seen(p, above), p, above, window), near(visible(e, v), p, p, window)],
                    dim=1,
                )
            )
            for e, v, p in zip(*(parts[1:] for parts in cut), strict=True)
        ]

    def _padded(self, window: int | None) -> torch.Tensor:
        masks = self.blocks(window)
        wide = torch.promote_types(self._dtype, torch.float32)
        shape = (len(masks), 1, self.longest, self.trunk + self.longest)
        whole = torch.full(shape, float("-inf"), dtype=wide, device=masks[0].device)
        whole[:, :, :, 0] = 0.0
        for at, mask in enumerate(masks):
            whole[at, 0, : mask.shape[0], : mask.shape[1]] = mask
        return whole

    def _additive(self, sees: torch.Tensor) -> torch.Tensor:
        return torch.zeros(sees.shape, dtype=self._dtype, device=sees.device).masked_fill_(
            ~sees, float("-inf")
        )


def near(
    sees: torch.Tensor, position: torch.Tensor, seen: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Limit `sees` [n, m] to pairs whose second position lies within the window of the first; in place.

    Comparing with a bound by row makes no matrix of distances, which would take eight bytes a pair.
    """
    return (
        sees if window is None else sees.logical_and_(seen[None, :] > (position - window)[:, None])
    )


def all_seen(position: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """[n, m]: every token of `position` sees every one of `seen`."""
    return torch.ones(len(position), len(seen), dtype=torch.bool, device=position.device)


def visible(enter: torch.Tensor, leave: torch.Tensor) -> torch.Tensor:
    """[n, n]: whether token i sees token j: j is not behind i, and j's node is i's or above it."""
    order = torch.arange(len(enter), device=enter.device)
    behind = order[None, :] <= order[:, None]
    return behind & (enter[None, :] <= enter[:, None]) & (enter[:, None] <= leave[None, :])
