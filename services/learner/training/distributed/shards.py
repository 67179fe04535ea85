"""The weights of a rank: its rows of every parameter in float32, and the gathering of whole ones.

It stands where Masters does: AdamW works on the shards, each rank on its own. A shard is a run of
rows of the first axis, all equally long but for the last ones, which may be shorter or empty.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from services.learner.model import lora
from services.learner.training.distributed.fsdp_module import PolicyModule

Tensors = dict[str, torch.Tensor]


class Shards:
    """This rank's rows of the trained parameters: `names`, `weights` and gradients.

    `adapted`: they are an adapter's, and this rank has its rows of the frozen base beside them.
    """

    def __init__(self, module: PolicyModule, dtype: torch.dtype, rank: int, size: int) -> None:
        self._dtype, self._rank, self._size = dtype, rank, size
        policy = module.policy
        self.adapted, self._matrices = lora.has(policy), lora.matrices(policy)
        named = list(policy.named_parameters())  # a tied parameter comes once
        self.names = [name for name, p in named if p.requires_grad]
        self._parameters = [p for _, p in named if p.requires_grad]
        self._frozen = {
            name: p for name, p in named if not p.requires_grad and isinstance(p, DTensor)
        }
        with torch.no_grad():  # the shard itself, not a copy: FSDP2 gathers what AdamW has written
            self.weights = [p.to_local() for p in self._parameters if isinstance(p, DTensor)]
        tensors = policy.state_dict(keep_vars=True)
        first_name = {id(p): name for name, p in named}
        self._tied = {
            lora.plain_name(name): lora.plain_name(first_name[id(tensor)])
            for name, tensor in tensors.items()
            if first_name.get(id(tensor), name) != name
        }
        self._buffers = {
            lora.plain_name(name): tensor.detach()
            for name, tensor in tensors.items()
            if id(tensor) not in first_name
        }

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.weights[0].device

    def clear(self) -> None:
        """Drop all gradients, before the first sequence of a batch."""
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            parameter.grad, weight.grad = None, None

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of this rank's rows, in the order of `names`.

        They are zeros for parameters that no sequence touched.
        """
        gradients: list[torch.Tensor] = []
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            gradient = parameter.grad
            own = gradient.to_local() if isinstance(gradient, DTensor) else torch.zeros_like(weight)
            weight.grad = own
            gradients.append(own)
        return gradients

    def publish(self) -> None:
        """Do nothing: the next pass gathers the shards."""

    # -- whole tensors: every rank calls these; rank 0 gets them, one after the other --

    def computed(self) -> Tensors:
        """Return all tensors of the model by name, in the precision of the computation.

        Tied names share storage. An adapter is merged. Empty on other ranks.
        """
        if self.adapted:
            tensors = self._merged_base(dict(self.whole(self.weights)))
        else:
            tensors = dict(self.whole(weight.to(self._dtype) for weight in self.weights))
            tensors = self._merged_base(tensors) | tensors
        if not tensors:
            return {}
        tied = {name: tensors[first] for name, first in self._tied.items()}
        return self._buffers | tensors | tied

    def exact(self) -> Tensors:
        """Return all tensors of a checkpoint, once each; empty on other ranks.

        Of an adapter they are its own alone, as PEFT names them.
        """
        trained = dict(self.whole(self.weights))
        if self.adapted:
            return {lora.stored_name(name): tensor for name, tensor in trained.items()}
        tensors = self._merged_base(trained) | trained
        return self._buffers | tensors if tensors else {}

    def _merged_base(self, trained: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the frozen tensors under the names of a model without an adapter.

        The adapter's matrices are added to theirs.
        """
        tensors: Tensors = {}
        for name, parameter in self._frozen.items():
            tensor = self._gathered(parameter, parameter.to_local())
            if tensor is not None:
                plain = lora.plain_name(name)
                matrix = self._matrices.get(plain)
                merged = tensor if matrix is None else matrix.merged(tensor, trained)
                tensors[plain] = merged.cpu()
        return tensors

    def whole(self, local: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and whole tensor of shards in the order of `names`; nothing on other ranks.

        The tensors are in the machine's memory; the accelerator's has one at a time.
        """
        for name, parameter, shard in zip(self.names, self._parameters, local, strict=True):
            tensor = self._gathered(parameter, shard)
            if tensor is not None:
                yield name, tensor.cpu()

    def _gathered(self, parameter: torch.Tensor, shard: torch.Tensor) -> torch.Tensor | None:
        return gathered(shard, len(parameter), self._rank, self._size)

    def own(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of a whole tensor."""
        weight, rows = self.weights[self.names.index(name)], rows_each(len(tensor), self._size)
        start = min(len(tensor), self._rank * rows)
        return tensor[start : start + len(weight)].to(weight.device)


def rows_each(rows: int, size: int) -> int:
    """Return the number of rows of all shards but the last ones."""
    return -(-rows // size)


def gathered(shard: torch.Tensor, rows: int, rank: int, size: int) -> torch.Tensor | None:
    """Return the whole tensor on rank 0, None on others."""
    each = rows_each(rows, size)
    padded = shard.new_zeros((each, *shard.shape[1:]))
    padded[: len(shard)] = shard.detach()
    parts = [torch.empty_like(padded) for _ in range(size)] if rank == 0 else None
    dist.gather(padded, parts, dst=0)
    return torch.cat(parts)[:rows] if parts else None


def restored(
    shards: Shards, moments: Mapping[str, torch.Tensor], kinds: tuple[str, ...]
) -> dict[str, Tensors]:
    """Return this rank's rows of a checkpoint's moments by parameter; scalars as they are."""
    by_name: dict[str, Tensors] = {}
    for name in shards.names:
        own: Tensors = {}
        for kind in kinds:
            tensor = moments.get(f"{kind}.{name}")
            if tensor is not None:
                rows = shards.own(name, tensor) if tensor.dim() else tensor.to(shards.device)
                own[kind] = rows.clone()
        if own:
            by_name[name] = own
    return by_name
