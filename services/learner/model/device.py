"""Device and precision that a learner computes with."""

from pathlib import Path

import torch

from banyan.errors import InvalidInput


def choose(
    requested: str, deterministic: bool = False, rank: int = 0, ranks: int = 1
) -> torch.device:
    """Return the device of one of the ranks of this machine.

    `auto` is an accelerator per rank if there are enough for all of them and the run need not be
    deterministic, else the CPU. Raise InvalidInput for missing accelerators.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "cpu" or (requested == "auto" and (deterministic or available < ranks)):
        return torch.device("cpu")
    if available < ranks:
        raise InvalidInput(
            f"resources.learner_device cuda: PyTorch sees {available} accelerators here, and each "
            f"rank of {ranks} needs one; install PyTorch for CUDA on a machine that has as many, "
            "or set it to auto or cpu"
        )
    return torch.device("cuda", rank)


def set_current(device: torch.device) -> None:
    """Make it the device that collectives of this thread use."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def compute_dtype(requested: str, device: torch.device | None = None) -> torch.dtype:
    """Return the dtype to compute in.

    `auto` is bfloat16 on an accelerator and on a CPU that multiplies it natively, else float32.
    """
    if requested != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[requested]
    if device is not None and device.type != "cpu":
        return torch.bfloat16
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return torch.bfloat16 if "avx512_bf16" in flags or "amx_bf16" in flags else torch.float32
