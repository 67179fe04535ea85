"""Reads weights back through the kernels that compute with them, inside vLLM's workers.

vLLM packs weights for its kernels and frees what it packed, so that they cannot be looked at. But a linear layer says a
column of its matrix exactly when it is given a one at one place and zeros elsewhere: there is one product and nothing to
round. So a few columns of every matrix, rows of the embedding and all vectors are compared with the weight file bit for bit,
which shows a step of any size. It costs a pass over as many tokens as there are columns.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

COLUMNS = 32  # of each matrix, others for each policy


class Reader:
    """What vLLM's workers can do beside their own (`worker_extension_cls`)."""

    model_runner: Any

    def read_back(self, manifest: str) -> tuple[list[str], list[str]]:
        """Tensors of a weight file that the model does not compute with, and those that cannot be asked of it."""
        from services.chassis import weightfile

        held = weightfile.read(Path(manifest))
        own = {n: tensor for n, tensor in weightfile.read_tensors(held).items() if not n.startswith(weightfile.HEAD)}
        return compare(self.model_runner.get_model(), own, held.aliases, held.digest)


@torch.inference_mode()
def compare(
    model: Any, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str], digest: bytes
) -> tuple[list[str], list[str]]:
    """Names of tensors that differ, and of those that were not compared. `digest` chooses the columns."""
    draws = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    equal: set[str] = set()
    wrong: set[str] = set()
    for names, said, true in _pairs(model, tensors, draws):
        if said.shape == true.shape:  # a shard of a tensor cannot be compared with the whole
            same = torch.equal(_flushed(said.cpu()), _flushed(true.to(said.dtype)))
            (equal if same else wrong).update(aliases.get(n, n) for n in names)
    return sorted(wrong), sorted(set(tensors) - set(aliases) - equal - wrong)


def _pairs(
    model: Any, tensors: Mapping[str, torch.Tensor], draws: torch.Generator
) -> Iterator[tuple[list[str], torch.Tensor, torch.Tensor]]:
    """Names of tensors, what the model says of them, and what the file says."""
    packed = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules():
        above, _, last = path.rpartition(".")
        parts = [f"{above}.{part}".lstrip(".") for part in packed.get(last, [last])]
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}" for part in parts]
            if getattr(layer, kind, None) is not None and all(name in tensors for name in names):
                true = [tensors[name] for name in names]
                yield (names, *(_weight(layer, true, draws) if kind == "weight" else (layer.bias, torch.cat(true))))


def _weight(layer: Any, true: list[torch.Tensor], draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Some columns of a linear layer, some rows of an embedding, or all of what is neither."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    if isinstance(layer, LinearBase | ParallelLMHead):
        at = _some(true[0].shape[1], draws)
        columns = torch.cat([part[:, at] for part in true]).t()
        ones = torch.nn.functional.one_hot(at, true[0].shape[1]).to(layer.params_dtype)
        said = layer.quant_method.apply(layer, ones.to(_device(layer)))
        return said[:, : columns.shape[1]], columns
    if isinstance(layer, VocabParallelEmbedding):
        at = _some(len(true[0]), draws)
        return layer.quant_method.embedding(layer, at.to(_device(layer))), true[0][at]
    return layer.weight, torch.cat(true)


def _flushed(values: torch.Tensor) -> torch.Tensor:
    """Numbers that are nearly too small to be written down are 0 to many kernels."""
    return torch.where(values.abs() < torch.finfo(values.dtype).tiny, torch.zeros_like(values), values)


def _some(count: int, draws: torch.Generator) -> torch.Tensor:
    return torch.randperm(count, generator=draws)[:COLUMNS]


def _device(layer: Any) -> torch.device:
    device: torch.device = layer.weight.device
    return device
