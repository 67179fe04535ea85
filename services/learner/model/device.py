"""Where a learner computes, and in which arithmetic."""

from pathlib import Path

import torch

from banyan.errors import InvalidInput


def choose(wanted: str, deterministic: bool = False, rank: int = 0, ranks: int = 1) -> torch.device:
    """The device of one of the ranks of this machine. auto: an accelerator of its own, where there are enough for all of
    them and bits need not be the same again.

    Raises InvalidInput for accelerators that are not there.
    """
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and (deterministic or seen < ranks)):
        return torch.device("cpu")
    if seen < ranks:
        raise InvalidInput(
            f"resources.learner_device cuda: PyTorch sees {seen} accelerators here, and each rank of {ranks} needs one;"
            " install PyTorch for CUDA on a machine that has as many, or set it to auto or cpu"
        )
    return torch.device("cuda", rank)


def take(device: torch.device) -> None:
    """Makes it the one that collectives of this thread use."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def compute_dtype(wanted: str, device: torch.device | None = None) -> torch.dtype:
    """auto: bfloat16 on an accelerator and where the CPU multiplies it natively, else float32."""
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    if device is not None and device.type != "cpu":
        return torch.bfloat16
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return torch.bfloat16 if "avx512_bf16" in flags or "amx_bf16" in flags else torch.float32
