"""Master weights in float32 under a model that computes in its own precision, and the gradients between them. Parameters
that are frozen have neither.

With bfloat16 the model's parameters are a copy: each row's gradients are added to the masters' in float32 as soon as they
are made, and `publish` copies the masters back. With float32 (or float64, in tests) masters and parameters are the same.
"""

from functools import partial

import torch
from transformers import PreTrainedModel

from services.learner.model import lora


class Masters:
    """`names`, `weights` and (in `weights[i].grad`) gradients of the parameters that are trained. `adapted`: they are an
    adapter's."""

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
        for index, (parameter, master) in enumerate(
            zip(self._parameters, self.weights, strict=True)
        ):
            master.grad = torch.zeros_like(master)
            parameter.data = parameter.data.to(dtype)
            parameter.register_post_accumulate_grad_hook(partial(self._collect, index))  # type: ignore[no-untyped-call]

    def _collect(self, index: int, parameter: torch.Tensor) -> None:
        gradient, master = parameter.grad, self.weights[index]
        assert gradient is not None and master.grad is not None
        if index in self._touched:
            master.grad.add_(gradient)
        else:
            master.grad.copy_(gradient)
            self._touched.add(index)
        parameter.grad = None

    def clear(self) -> None:
        """Before the first row of a batch."""
        self._touched.clear()
        if not self._apart:
            for weight in self.weights:
                weight.grad = None

    def gradients(self) -> list[torch.Tensor]:
        """Gradients of the batch, in the order of `names`; zeros for parameters that no row touched."""
        for index, weight in enumerate(self.weights):
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            elif self._apart and index not in self._touched:
                weight.grad.zero_()
        return [weight.grad for weight in self.weights if weight.grad is not None]

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the masters into the model."""
        if self._apart:
            for parameter, master in zip(self._parameters, self.weights, strict=True):
                parameter.copy_(master)

    def computed(self) -> dict[str, torch.Tensor]:
        """All tensors of the model by name, as it computes with them; tied names share storage. An adapter is merged."""
        if self.adapted:
            return lora.merged(self._model, self._named())
        return {name: tensor.detach() for name, tensor in self._model.state_dict().items()}

    def exact(self) -> dict[str, torch.Tensor]:
        """All tensors that a checkpoint needs, once each: masters for parameters, and the model's own for the rest; of an
        adapter its own alone, as PEFT names them."""
        if self.adapted:
            return {lora.stored_name(name): weight for name, weight in self._named().items()}
        tied = {p.data_ptr() for p in self._parameters}
        rest = {
            n: t.detach() for n, t in self._model.state_dict().items() if t.data_ptr() not in tied
        }
        return rest | self._named()

    def _named(self) -> dict[str, torch.Tensor]:
        return {
            name: weight.detach() for name, weight in zip(self.names, self.weights, strict=True)
        }
