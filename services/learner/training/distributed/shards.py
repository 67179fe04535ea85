"""The weights that a rank holds: its rows of every parameter, in float32, and how the whole is had of them.

Stands where Masters does: AdamW works on the shards, each rank on its own. A shard is a run of rows of the first axis, all
equally long but for the last ones, which may be shorter or empty.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from services.learner.model import lora
from services.learner.training.distributed.whole import Whole


class Shards:
    """`names`, `weights` and gradients of this rank's rows of the parameters that are trained. `adapted`: they are an
    adapter's, and this rank holds its rows of the frozen base beside them."""

    def __init__(self, whole: Whole, dtype: torch.dtype, rank: int, size: int) -> None:
        self._whole, self._dtype, self._rank, self._size = whole, dtype, rank, size
        self.adapted, self._matrices = lora.has(whole.policy), lora.matrices(whole.policy)
        named = list(whole.policy.named_parameters())  # a tied parameter comes once
        self.names = [name for name, p in named if p.requires_grad]
        self._parameters = [p for _, p in named if p.requires_grad]
        self._frozen = {name: p for name, p in named if not p.requires_grad and isinstance(p, DTensor)}
        with torch.no_grad():  # the shard itself, not a copy: FSDP2 gathers what AdamW has written
            self.weights = [p.to_local() for p in self._parameters if isinstance(p, DTensor)]
        tensors = whole.policy.state_dict(keep_vars=True)
        first, plain = {id(p): name for name, p in named}, lora.plain_name
        self._tied = {plain(name): plain(first[id(t)]) for name, t in tensors.items() if first.get(id(t), name) != name}
        self._rest = {plain(n): t.detach() for n, t in tensors.items() if id(t) not in first}

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.weights[0].device

    def clear(self) -> None:
        """Before the first row of a batch."""
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            parameter.grad, weight.grad = None, None

    def gradients(self) -> list[torch.Tensor]:
        """Gradients of this rank's rows, in the order of `names`; zeros for parameters that no row touched."""
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            gradient = parameter.grad
            weight.grad = gradient.to_local() if isinstance(gradient, DTensor) else torch.zeros_like(weight)
        return [weight.grad for weight in self.weights if weight.grad is not None]

    def copy_to_model(self) -> None:
        """Do nothing: the next pass gathers the shards."""

    # -- the whole: every rank calls these, and rank 0 gets what it asks for, one tensor after the other --

    def computed(self) -> dict[str, torch.Tensor]:
        """All tensors of the model by name, as it computes with them; tied names share storage. An adapter is merged. Empty
        on other ranks."""
        trained = dict(self.whole(self.weights if self.adapted else (w.to(self._dtype) for w in self.weights)))
        found = self._base(trained) | ({} if self.adapted else trained)
        return self._rest | found | {name: found[first] for name, first in self._tied.items()} if found else {}

    def exact(self) -> dict[str, torch.Tensor]:
        """All tensors that a checkpoint needs, once each; of an adapter its own alone, as PEFT names them. Empty on other
        ranks."""
        trained = dict(self.whole(self.weights))
        if self.adapted:
            return {lora.stored_name(name): tensor for name, tensor in trained.items()}
        found = self._base(trained) | trained
        return self._rest | found if found else {}

    def _base(self, trained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is frozen, by the names of the model without an adapter; to its matrices the adapter's are added."""
        found = {}
        for name, parameter in self._frozen.items():
            tensor, plain = self._gathered(parameter, parameter.to_local()), lora.plain_name(name)
            if tensor is not None:
                matrix = self._matrices.get(plain)
                found[plain] = (tensor if matrix is None else matrix.merged(tensor, trained)).cpu()
        return found

    def whole(self, local: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor of what every rank holds a shard of, in the order of `names`; nothing on other ranks. They are
        held in the machine's memory; the accelerator's holds one at a time."""
        for (name, parameter), shard in zip(zip(self.names, self._parameters, strict=True), local, strict=True):
            found = self._gathered(parameter, shard)
            if found is not None:
                yield name, found.cpu()

    def _gathered(self, parameter: torch.Tensor, shard: torch.Tensor) -> torch.Tensor | None:
        return gathered(shard, len(parameter), self._rank, self._size)

    def own(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a whole tensor."""
        held, rows = self.weights[self.names.index(name)], rows_each(len(tensor), self._size)
        start = min(len(tensor), self._rank * rows)
        return tensor[start : start + len(held)].to(held.device)


def rows_each(rows: int, size: int) -> int:
    """Rows of all shards but the last ones."""
    return -(-rows // size)


def gathered(shard: torch.Tensor, rows: int, rank: int, size: int) -> torch.Tensor | None:
    """The whole tensor on rank 0, None on others."""
    each = rows_each(rows, size)
    padded = shard.new_zeros((each, *shard.shape[1:]))
    padded[: len(shard)] = shard.detach()
    parts = [torch.empty_like(padded) for _ in range(size)] if rank == 0 else None
    dist.gather(padded, parts, dst=0)
    return torch.cat(parts)[:rows] if parts else None


def restored(
    shards: Shards, moments: Mapping[str, torch.Tensor], kinds: tuple[str, ...]
) -> dict[str, dict[str, torch.Tensor]]:
    """By parameter, this rank's rows of what a checkpoint keeps of it; scalars as they are."""
    held = {name: {k: moments[f"{k}.{name}"] for k in kinds if f"{k}.{name}" in moments} for name in shards.names}
    return {
        name: {kind: (shards.own(name, t) if t.dim() else t.to(shards.device)).clone() for kind, t in found.items()}
        for name, found in held.items()
        if found
    }
