"""Weights that reach one of vLLM's workers by collectives: received, digested and loaded in pieces.

Each worker receives the whole file and digests it: a version counts only if its bytes are those
that the treestore knows. Samples for the comparison of `readback` are kept; the rest is freed.
"""

import contextlib
from collections.abc import Iterator

import torch

from banyan.errors import InvalidInput
from services.chassis.weights import collective, file
from services.chassis.weights.collective import Place, WeightSlice
from services.chassis.weights.file import WeightManifest
from services.rollout.engines.vllm_engine.readback import Sample


class Received:
    """One version on its way into one worker.

    samples: samples of the model's received tensors, by name.
    digest: of the weights; it decides which parts were sampled.
    """

    def __init__(self, manifest: WeightManifest, place: Place, device: torch.device) -> None:
        self._manifest, self._place = manifest, place
        self._device = device if place.transport == "nccl" else torch.device("cpu")
        self.digest, self._hasher = manifest.digest, file.hasher()
        self._names = {tensor.name: [tensor.name] for tensor in manifest.tensors}
        for alias, name in manifest.aliases.items():
            self._names[name].append(alias)
        self.samples: dict[str, Sample] = {}

    def tensors(self, rank: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the model's tensors by all names. Raise TemporaryError if the transfer breaks."""
        with contextlib.closing(collective.join(self._place, rank)) as ranks:
            for piece in collective.pieces(self._manifest, self._place.piece_bytes):
                flat_B = torch.empty(piece.bytes, dtype=torch.uint8, device=self._device)
                if piece.bytes:
                    ranks.broadcast(flat_B)
                    self._hasher.update(flat_B.cpu().numpy().data)
                yield from self._cut(piece, flat_B)
            ranks.meet(self._device)

    def _cut(self, piece: WeightSlice, flat_B: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        for entry in piece.entries:
            if entry.name.startswith(file.HEAD):
                continue
            tensor = file.cut(flat_B, piece.offset, entry)
            sample = Sample.of(tensor, self.digest)
            for name in self._names[entry.name]:
                self.samples[name] = sample
                yield name, tensor.clone()  # a loader may write to its arguments

    def check(self) -> None:
        """Raise InvalidInput unless the received bytes have the manifest's digest."""
        received, expected = self._hasher.digest(), self.digest
        if received != expected:
            raise InvalidInput(
                f"the weights handed over digest to {received.hex()[:16]} instead of"
                f" {expected.hex()[:16]}"
            )
