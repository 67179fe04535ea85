"""The policy as one module whose call is a row's pass: what FSDP2 gathers parameters before, and frees them after.

Layers gather one by one, the rest (embeddings, last norm, output layer: the root) stays until the backward pass is over.
Parameters are float32 shards; they are gathered in the precision that is computed in, and gradients are added up in float32.
Frozen ones, the base of an adapter, are shards in that precision, and have no gradients.
"""

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from banyan.errors import NotReady
from services.learner.model.load import Pass, forward
from services.learner.model.tempered import Softening
from services.learner.packing.packing import PackedSequence


class Whole(torch.nn.Module):
    """Row → what one pass says of it."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.policy = policy
        self.softening: Softening | None = None

    def forward(self, row: PackedSequence) -> Pass:
        """One pass over the row's unique tokens. Only what is predicted has a gradient: the states are for the head."""
        said = forward(self.policy, row, self.softening)
        return said._replace(state_U_D=said.state_U_D.detach())


def sharded(policy: PreTrainedModel, dtype: torch.dtype, size: int) -> Whole:
    """The policy, its parameters cut over `size` ranks. Every rank calls it with the same weights. Raises NotReady."""
    whole = Whole(policy)
    mesh = init_device_mesh(next(policy.parameters()).device.type, (size,))
    with_masters = dtype not in (torch.float32, torch.float64)
    precision = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False) if with_masters else _AS_IS
    if with_masters:
        for frozen in (p for p in policy.parameters() if not p.requires_grad):
            frozen.data = frozen.data.to(dtype)
    for layer in _layers(policy):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(whole, mesh=mesh, mp_policy=precision)
    return whole


_AS_IS = MixedPrecisionPolicy(cast_forward_inputs=False)


def _layers(policy: Any) -> list[torch.nn.Module]:
    layers = getattr(policy.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise NotReady(f"{type(policy).__name__} has no list of layers to cut; use resources.learner_ranks: 1")
    return list(layers)
