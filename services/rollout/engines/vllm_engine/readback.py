"""Reading weights back through the kernels that compute with them, inside vLLM's workers.

vLLM packs weights for its kernels and frees the originals, so that they cannot be inspected. But
the output of a linear layer is exactly a column of its matrix where the input is a one at one place
and zero elsewhere: there is one product and nothing to round. So a few columns of every matrix,
rows of the embedding and all vectors are compared with the weight file bit for bit, which shows a
step of any size. It costs a pass over as many tokens as there are columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

COLUMNS = 32  # of each matrix, different ones for each policy


@dataclass(frozen=True, slots=True)
class Sample:
    """The compared part of a tensor.

    shape: of the tensor.
    columns: of a matrix [out, in], some columns [out, n].
    rows: of a matrix, some rows [n, in].
    whole: any other tensor.
    """

    shape: tuple[int, ...]
    columns: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    whole: torch.Tensor | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, digest: bytes) -> "Sample":
        """Copy a sample of a tensor to the CPU. The weights' digest decides which columns."""
        shape = tuple(tensor.shape)
        if tensor.dim() != 2:
            return cls(shape, whole=tensor.detach().clone().cpu())
        rows, columns = (_places(size, digest).to(tensor.device) for size in shape)
        return cls(shape, columns=tensor[:, columns].cpu(), rows=tensor[rows].cpu())


def samples(tensors: Mapping[str, torch.Tensor], digest: bytes) -> dict[str, Sample]:
    """Return samples of the model's own tensors in a weight file."""
    from services.chassis.weights import file

    own = ((name, t) for name, t in tensors.items() if not name.startswith(file.HEAD))
    return {name: Sample.of(tensor, digest) for name, tensor in own}


@torch.inference_mode()
def compare(
    model: Any, expected: Mapping[str, Sample], aliases: Mapping[str, str], digest: bytes
) -> tuple[list[str], list[str]]:
    """Return the names of tensors that differ, and of those that were not compared.

    digest: as for the samples.
    """
    equal: set[str] = set()
    wrong: set[str] = set()
    for names, actual, stored in _pairs(model, expected, digest):
        if actual.shape == stored.shape:  # a shard of a tensor cannot be compared with the whole
            same = torch.equal(_flushed(actual.cpu()), _flushed(stored.to(actual.dtype)))
            (equal if same else wrong).update(aliases.get(name, name) for name in names)
    return sorted(wrong), sorted(set(expected) - set(aliases) - equal - wrong)


def _pairs(
    model: Any, expected: Mapping[str, Sample], digest: bytes
) -> Iterator[tuple[list[str], torch.Tensor, torch.Tensor]]:
    """Yield names of tensors with the model's values and the file's."""
    packed = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules():
        above, _, last = path.rpartition(".")
        parts = [f"{above}.{part}".lstrip(".") for part in packed.get(last, [last])]
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}" for part in parts]
            if getattr(layer, kind, None) is None or not all(name in expected for name in names):
                continue
            pair = _read(layer, kind, [expected[name] for name in names], digest)
            if pair is not None:
                yield names, pair[0], pair[1]


def _read(
    layer: Any, kind: str, expected: list[Sample], digest: bytes
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the values of a layer, and those of the file; None where it cannot be read.

    They are some columns of a linear layer, some rows of an embedding, or all of any other.
    """
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    whole = [sample.whole for sample in expected if sample.whole is not None]
    if len(whole) == len(expected):
        return getattr(layer, kind), torch.cat(whole)
    columns = [sample.columns for sample in expected if sample.columns is not None]
    rows = [sample.rows for sample in expected if sample.rows is not None]
    height, width = expected[0].shape[-2:]
    if kind != "weight" or len(columns) != len(expected):
        return None
    if isinstance(layer, LinearBase | ParallelLMHead):
        if getattr(layer, "input_size_per_partition", width) != width:
            return None
        places = _places(width, digest)
        ones = torch.nn.functional.one_hot(places, width).to(layer.params_dtype)
        output = layer.quant_method.apply(layer, ones.to(_device(layer)))
        return output[:, : sum(map(len, columns))], torch.cat(columns).t()
    if len(layer.weight) < height:
        return None
    places = _places(height, digest).to(_device(layer))
    if isinstance(layer, VocabParallelEmbedding):
        return layer.quant_method.embedding(layer, places), rows[0]
    return layer.weight[places], rows[0]


def _flushed(values: torch.Tensor) -> torch.Tensor:
    """Return the values with subnormal numbers as 0, as many kernels treat them."""
    subnormal = values.abs() < torch.finfo(values.dtype).tiny
    return torch.where(subnormal, torch.zeros_like(values), values)


def _places(count: int, digest: bytes) -> torch.Tensor:
    """Return some places in 0..count-1, different ones for each policy."""
    draws = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little") ^ count)
    return torch.randperm(count, generator=draws)[:COLUMNS]


def _device(layer: Any) -> torch.device:
    device: torch.device = layer.weight.device
    return device
