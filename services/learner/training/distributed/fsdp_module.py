"""The policy as one module whose call is a pass, around which FSDP2 gathers and frees parameters.

Layers are gathered one by one; the rest (embeddings, last norm, output layer: the root) stays until
the backward pass is over. Parameters are float32 shards; they are gathered in the precision of the
computation, and gradients are added up in float32. Frozen parameters, the base of an adapter, are
shards in the computing precision, and have no gradients.
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

_AS_IS = MixedPrecisionPolicy(cast_forward_inputs=False)


class PolicyModule(torch.nn.Module):
    """A module that maps a packed sequence to the result of its pass."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.policy = policy
        self.softening: Softening | None = None

    def forward(self, sequence: PackedSequence) -> Pass:
        """Return one pass over the sequence's unique tokens.

        Only predictions have gradients: the states are for the value head.
        """
        result = forward(self.policy, sequence, self.softening)
        return result._replace(state_N_H=result.state_N_H.detach())


def sharded(policy: PreTrainedModel, dtype: torch.dtype, size: int) -> PolicyModule:
    """Return the policy with its parameters cut over `size` ranks.

    Every rank calls it with the same weights. Raises NotReady for a model without a list of layers.
    """
    module = PolicyModule(policy)
    mesh = init_device_mesh(next(policy.parameters()).device.type, (size,))
    precision = _AS_IS
    if dtype not in (torch.float32, torch.float64):
        precision = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
        for parameter in policy.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
    for layer in _layers(policy):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(module, mesh=mesh, mp_policy=precision)
    return module


def _layers(policy: Any) -> list[torch.nn.Module]:
    layers = getattr(policy.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        kind = type(policy).__name__
        raise NotReady(f"{kind} has no list of layers to cut; use resources.learner_ranks: 1")
    return list(layers)
