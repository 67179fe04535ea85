"""Policies that are adapters (LoRA): weight files whose manifest has an `adapter`.

That entry is PEFT's configuration, and tensors have PEFT's names. vLLM reads adapters from folders,
so the file is written out as one. Each policy is an adapter of its own, with a unique id and cache
salt.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from services.chassis.weights import file

if TYPE_CHECKING:
    from services.rollout.engines.vllm_engine.core import Core

_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<which>[AB])\.weight")
_MAX_ID = 2**31 - 2


def read(weights: Path) -> Mapping[str, Any] | None:
    """Return the configuration of the adapter in a weight file; None for whole weights."""
    return file.read(weights).adapter


def check(
    adapter: Mapping[str, Any], weights: Path, shapes: Mapping[str, tuple[int, ...]], max_rank: int
) -> None:
    """Raise InvalidInput unless an adapter fits the model and the rank of vLLM's start."""
    rank = adapter.get("r")
    if not isinstance(rank, int) or not 0 < rank <= max_rank:
        raise InvalidInput(
            f"{weights} is an adapter of rank {rank!r}, and vLLM was started for at most"
            f" {max_rank}: set resources.engine_settings.lora_rank"
        )
    for tensor in file.read(weights).tensors:
        match = _NAME.fullmatch(tensor.name)
        shape = shapes.get(f"{match['module']}.weight", ()) if match else ()
        if match is None or (shapes and len(shape) != 2):
            raise InvalidInput(
                f"{weights} holds {tensor.name!r}, which is no adapter of a matrix of the model"
            )
        wanted = (rank, shape[1]) if match["which"] == "A" else (shape[0], rank)
        if shapes and tensor.shape != wanted:
            raise InvalidInput(
                f"tensor {tensor.name} of {weights} has shape {tensor.shape} instead of {wanted}"
            )


async def load(
    core: "Core", policy: PolicyVersion, adapter: Mapping[str, Any], weights: Path
) -> None:
    """Load an adapter into vLLM."""
    with tempfile.TemporaryDirectory(prefix="banyan-adapter-") as folder:
        await core.adapt(request(policy, write(adapter, weights, Path(folder))))


def request(policy: PolicyVersion, folder: Path) -> Any:
    """Return vLLM's reference to a policy's adapter in a folder."""
    from vllm.lora.request import LoRARequest

    adapter_id = 1 + int.from_bytes(policy.digest[:8], "little") % _MAX_ID
    return LoRARequest(policy.digest.hex(), adapter_id, str(folder))


def write(adapter: Mapping[str, Any], weights: Path, folder: Path) -> Path:
    """Write and return the folder that PEFT would have saved."""
    from safetensors.torch import save_file

    tensors = file.read_tensors(file.read(weights))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **adapter}))
    return folder
