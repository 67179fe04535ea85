"""Weights that come to one of vLLM's workers by collectives: received piece by piece, digested, loaded as they come.

Each worker receives all of the file, and digests it: a version counts only if its bytes are those that the treestore knows.
What of it vllm_proof will compare is kept; the rest is let go of.
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
    """One version on its way into one worker. samples: of the model's tensors that came, by name;
    digest: what they were taken by."""

    def __init__(self, manifest: WeightManifest, place: Place, device: torch.device) -> None:
        self._manifest, self._place = manifest, place
        self._device = device if place.transport == "nccl" else torch.device("cpu")
        self.digest, self._hasher = manifest.digest, file.hasher()
        self._names = {tensor.name: [tensor.name] for tensor in manifest.tensors}
        for alias, name in manifest.aliases.items():
            self._names[name].append(alias)
        self.samples: dict[str, Sample] = {}

    def tensors(self, rank: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's tensors, under all of their names. Raises TemporaryError where the hand-over breaks."""
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
                yield name, tensor.clone()  # a loader may write into what it is given

    def check(self) -> None:
        """Raises InvalidInput unless what came is what the manifest says."""
        found, said = self._hasher.digest(), self.digest
        if found != said:
            raise InvalidInput(
                f"the weights handed over digest to {found.hex()[:16]} instead of {said.hex()[:16]}"
            )
