"""Float32 master weights under a model that computes in its own precision.

With bfloat16 the model's parameters are a copy: the gradients of each sequence are added to the
masters' in float32 as soon as they are made, and `copy_to_model` copies the masters back. With
float32 (or float64, in tests) masters and parameters are the same. Frozen parameters have neither
masters nor gradients.
"""

import weakref
from functools import partial

import torch
from transformers import PreTrainedModel

from services.learner.model import lora


def _collect(masters: "weakref.ref[Masters]", index: int, parameter: torch.Tensor) -> None:
    """Hand a gradient to its owner.

    Garbage collection does not see what a tensor's hook holds: one that held its owner would keep
    the model for as long as the process lives.
    """
    owner = masters()
    if owner is not None:
        owner.collect(index, parameter)


class Masters:
    """Master weights of the trained parameters.

    names: their names in the model.
    weights: their values, with the gradients in `weights[i].grad`.
    adapted: they are those of an adapter.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model = model
        self.adapted = lora.has(model)
        named = list(model.named_parameters())  # a tied parameter comes once
        self.names = [name for name, p in named if p.requires_grad]
        self._parameters = [p for _, p in named if p.requires_grad]
        self._apart = dtype not in (torch.float32, torch.float64)
        self._touched: set[int] = set()
        if not self._apart:
            self.weights: list[torch.Tensor] = list(self._parameters)
            return
        self.weights = [p.detach().clone() for p in self._parameters]
        for frozen in (p for _, p in named if not p.requires_grad):
            frozen.data = frozen.data.to(dtype)
        for index, master in enumerate(self.weights):
            master.grad = torch.zeros_like(master)
            parameter = self._parameters[index]
            parameter.data = parameter.data.to(dtype)
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(_collect, weakref.ref(self), index)
            )

    def collect(self, index: int, parameter: torch.Tensor) -> None:
        """Add the gradient of a sequence to its master's, and drop it."""
        gradient, master = parameter.grad, self.weights[index]
        assert gradient is not None and master.grad is not None
        if index in self._touched:
            master.grad.add_(gradient)
        else:
            master.grad.copy_(gradient)
            self._touched.add(index)
        parameter.grad = None

    def clear(self) -> None:
        """Drop all gradients, before the first sequence of a batch."""
        self._touched.clear()
        if not self._apart:
            for weight in self.weights:
                weight.grad = None

    def gradients(self) -> list[torch.Tensor]:
        """Return the batch's gradients in the order of `names`; zeros for untouched parameters."""
        for index, weight in enumerate(self.weights):
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            elif self._apart and index not in self._touched:
                weight.grad.zero_()
        return [weight.grad for weight in self.weights if weight.grad is not None]

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the masters into the model."""
        if self._apart:
            for parameter, master in zip(self._parameters, self.weights, strict=True):
                parameter.copy_(master)

    def computed(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the model by name, as it computes with them.

        Tied names share storage. An adapter is merged.
        """
        if self.adapted:
            return lora.merged(self._model, self._named())
        return {name: tensor.detach() for name, tensor in self._model.state_dict().items()}

    def exact(self) -> dict[str, torch.Tensor]:
        """Return all tensors that a checkpoint needs, once each.

        Masters for parameters, and the model's own for the rest; of an adapter only its own, by
        PEFT's names.
        """
        if self.adapted:
            return {lora.stored_name(name): weight for name, weight in self._named().items()}
        tied = {p.data_ptr() for p in self._parameters}
        state = self._model.state_dict()
        rest = {name: t.detach() for name, t in state.items() if t.data_ptr() not in tied}
        return rest | self._named()

    def _named(self) -> dict[str, torch.Tensor]:
        weights = [weight.detach() for weight in self.weights]
        return dict(zip(self.names, weights, strict=True))
