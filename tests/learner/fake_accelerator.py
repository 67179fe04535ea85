"""A fake accelerator: tensors in the host's memory that nothing may mix with the host's own.

PyTorch gets a backend in Python, each tensor of which wraps one of the host. Every operation on
tensors of both sides fails, as it would on a real one, except copies and operations with scalars.
It cannot show what a kernel computes there, nor how fast. The backend stays registered, so it is
for a process of its own (accelerator_cases.py).
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


class AcceleratorTensor(torch.Tensor):
    """A tensor of the accelerator.

    host: the tensor of the host that it wraps.
    """

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> "AcceleratorTensor":
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            device=torch.device(NAME, 0),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            requires_grad=host.requires_grad,
        )
        wrapper.host = host
        return wrapper

    def __repr__(self, **_: Any) -> str:
        return f"AcceleratorTensor({self.host})"

    def tolist(self) -> Any:
        return self.host.tolist()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of `attached`")


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments, name = dict(kwargs or {}), func._schema.name
        tensors = [x for x in tree_leaves((args, arguments)) if isinstance(x, torch.Tensor)]
        there = [x for x in tensors if isinstance(x, AcceleratorTensor)]
        on_host = [x for x in tensors if not isinstance(x, AcceleratorTensor) and x.dim()]
        if there and on_host and name not in _COPIES:
            shapes = [(tuple(x.shape), x.device.type) for x in tensors]
            raise AssertionError(f"{name} of tensors of the host and of the accelerator: {shapes}")
        wraps = isinstance(args[0], AcceleratorTensor) if name == "aten::copy_" else bool(there)
        if (device := arguments.get("device")) is not None:
            wraps = torch.device(device).type == NAME
            arguments["device"] = torch.device("cpu")
        result = func(*tree_map(_unwrapped, args), **tree_map(_unwrapped, arguments))
        own = {id(x.host): x for x in there}
        return tree_map(lambda x: _wrapped(x, own) if wraps else x, result)


def _unwrapped(x: Any) -> Any:
    return x.host if isinstance(x, AcceleratorTensor) else x


def _wrapped(x: Any, own: dict[int, AcceleratorTensor]) -> Any:
    if not isinstance(x, torch.Tensor) or isinstance(x, AcceleratorTensor):
        return x
    # A tensor that is changed in place stays the same object.
    return own[id(x)] if id(x) in own else AcceleratorTensor(x)


@contextlib.contextmanager
def attached() -> Iterator[None]:
    """Attach the accelerator while the block runs."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    original = torch.tensor

    def tensor(*args: Any, device: Any = None, **more: Any) -> torch.Tensor:
        """Make the tensor on the host first: PyTorch fills it below a backend in Python."""
        host = original(*args, **more)
        return host if device is None else host.to(device)

    torch.tensor = tensor  # type: ignore[assignment]
    try:
        with _Operations():
            yield
    finally:
        torch.tensor = original
