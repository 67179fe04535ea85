"""Reads weights back through the kernels that compute with them, inside vLLM's workers.

vLLM packs weights for its kernels and frees what it packed, so that they cannot be looked at. But a linear layer says a
column of its matrix exactly when it is given a one at one place and zeros elsewhere: there is one product and nothing to
round. So a few columns of every matrix, rows of the embedding and all vectors are compared with the weight file bit for bit,
which shows a step of any size. It costs a pass over as many tokens as there are columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

COLUMNS = 32  # of each matrix, others for each policy


@dataclass(frozen=True, slots=True)
class Sample:
    """What is compared of a tensor: of a matrix [out, in] some columns [out, n] and rows [n, in], else all of it."""

    shape: tuple[int, ...]
    columns: torch.Tensor | None
    rows: torch.Tensor | None
    whole: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor, digest: bytes) -> "Sample":
        """Copies it out of a tensor, to the CPU. `digest`: of the weights; it says which columns."""
        shape = tuple(tensor.shape)
        if tensor.dim() != 2:
            return cls(shape, None, None, tensor.detach().clone().cpu())
        rows, columns = (_some(size, digest).to(tensor.device) for size in shape)
        return cls(shape, tensor[:, columns].cpu(), tensor[rows].cpu(), None)


def samples(tensors: Mapping[str, torch.Tensor], digest: bytes) -> dict[str, Sample]:
    """Of the model's own tensors in a weight file."""
    from services.chassis.weights import file

    return {
        n: Sample.of(tensor, digest) for n, tensor in tensors.items() if not n.startswith(file.HEAD)
    }


@torch.inference_mode()
def compare(
    model: Any, truth: Mapping[str, Sample], aliases: Mapping[str, str], digest: bytes
) -> tuple[list[str], list[str]]:
    """Names of tensors that differ, and of those that were not compared. `digest`: what the samples were taken by."""
    equal: set[str] = set()
    wrong: set[str] = set()
    for names, said, true in _pairs(model, truth, digest):
        if said.shape == true.shape:  # a shard of a tensor cannot be compared with the whole
            same = torch.equal(_flushed(said.cpu()), _flushed(true.to(said.dtype)))
            (equal if same else wrong).update(aliases.get(n, n) for n in names)
    return sorted(wrong), sorted(set(truth) - set(aliases) - equal - wrong)


def _pairs(
    model: Any, truth: Mapping[str, Sample], digest: bytes
) -> Iterator[tuple[list[str], torch.Tensor, torch.Tensor]]:
    """Names of tensors, what the model says of them, and what the weights say."""
    packed = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules():
        above, _, last = path.rpartition(".")
        parts = [f"{above}.{part}".lstrip(".") for part in packed.get(last, [last])]
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}" for part in parts]
            if getattr(layer, kind, None) is None or not all(name in truth for name in names):
                continue
            if (pair := _read(layer, kind, [truth[name] for name in names], digest)) is not None:
                yield (names, *pair)


def _read(
    layer: Any, kind: str, true: list[Sample], digest: bytes
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Some columns of a linear layer, some rows of an embedding, or all of what is neither; None of what cannot be read."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    whole = [part.whole for part in true if part.whole is not None]
    if len(whole) == len(true):
        return getattr(layer, kind), torch.cat(whole)
    columns, rows = (
        [side for part in true if (side := getattr(part, name)) is not None]
        for name in ("columns", "rows")
    )
    height, width = true[0].shape[-2:]
    if kind != "weight" or len(columns) != len(true):
        return None
    if isinstance(layer, LinearBase | ParallelLMHead):
        if getattr(layer, "input_size_per_partition", width) != width:
            return None
        ones = torch.nn.functional.one_hot(_some(width, digest), width).to(layer.params_dtype)
        said = layer.quant_method.apply(layer, ones.to(_device(layer)))
        return said[:, : sum(map(len, columns))], torch.cat(columns).t()
    if len(layer.weight) < height:
        return None
    at = _some(height, digest).to(_device(layer))
    if isinstance(layer, VocabParallelEmbedding):
        return layer.quant_method.embedding(layer, at), rows[0]
    return layer.weight[at], rows[0]


def _flushed(values: torch.Tensor) -> torch.Tensor:
    """Numbers that are nearly too small to be written down are 0 to many kernels."""
    return torch.where(
        values.abs() < torch.finfo(values.dtype).tiny, torch.zeros_like(values), values
    )


def _some(count: int, digest: bytes) -> torch.Tensor:
    """Places in 0..count-1: others for each policy."""
    draws = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little") ^ count)
    return torch.randperm(count, generator=draws)[:COLUMNS]


def _device(layer: Any) -> torch.device:
    device: torch.device = layer.weight.device
    return device
