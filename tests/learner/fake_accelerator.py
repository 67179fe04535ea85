"""An accelerator that is none: its tensors lie in the machine's memory, and nothing may mix them with the host's.

PyTorch is told of a backend in Python; each tensor of it wraps one of the host. Every operation on tensors of both sides
fails, as it would on a real one, but for copies and for scalars. What a kernel computes there, and how fast, it cannot say.
The backend stays registered, so it is for a process of its own (accelerated.py).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "elsewhere"
DEVICE = f"{NAME}:0"
_COPIES = ("aten::_to_copy", "aten::copy_")


class There(torch.Tensor):
    """A tensor of the accelerator; `here`: what it wraps."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> "There":
        like: dict[str, Any] = {"strides": here.stride(), "storage_offset": here.storage_offset()}
        like |= {"dtype": here.dtype, "layout": here.layout, "requires_grad": here.requires_grad}
        made = torch.Tensor._make_wrapper_subclass(
            cls, here.size(), device=torch.device(NAME, 0), **like
        )
        made.here = here
        return made

    def __repr__(self, **_: Any) -> str:
        return f"There({self.here})"

    def tolist(self) -> Any:
        return self.here.tolist()

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of `attached`")


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = dict(kwargs or {}), func._schema.name
        tensors = [x for x in tree_leaves((args, given)) if isinstance(x, torch.Tensor)]
        there = [x for x in tensors if isinstance(x, There)]
        if (
            there
            and name not in _COPIES
            and any(x.dim() for x in tensors if not isinstance(x, There))
        ):
            shapes = [(tuple(x.shape), x.device.type) for x in tensors]
            raise AssertionError(f"{name} of tensors of the host and of the accelerator: {shapes}")
        wraps = isinstance(args[0], There) if name == "aten::copy_" else bool(there)
        if (wanted := given.get("device")) is not None:
            wraps = torch.device(wanted).type == NAME
            given["device"] = torch.device("cpu")
        found = func(*tree_map(_here, args), **tree_map(_here, given))
        own = {id(x.here): x for x in there}
        return tree_map(lambda x: _wrapped(x, own) if wraps else x, found)


def _here(x: Any) -> Any:
    return x.here if isinstance(x, There) else x


def _wrapped(x: Any, own: dict[int, There]) -> Any:
    if not isinstance(x, torch.Tensor) or isinstance(x, There):
        return x
    return (
        own[id(x)] if id(x) in own else There(x)
    )  # what is changed in place stays the tensor that it was


@contextlib.contextmanager
def attached() -> Iterator[None]:
    """The accelerator, while the block runs."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    made = torch.tensor

    def tensor(*args: Any, device: Any = None, **more: Any) -> torch.Tensor:
        """PyTorch fills a new tensor below the level at which a backend in Python is asked."""
        here = made(*args, **more)
        return here if device is None else here.to(device)

    torch.tensor = tensor  # type: ignore[assignment]
    try:
        with _Operations():
            yield
    finally:
        torch.tensor = made
