"""The weight transfer backend `banyan` of vLLM's workers.

It maps the weight file that the node checked and loads it as a checkpoint: no copy passes between
processes. Where the learner broadcasts weights by collectives there is no file, and each worker
receives, and checks, the bytes itself (`receive`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.chassis.weights import collective, file
from services.chassis.weights.collective import Place
from services.rollout.engines.vllm_engine.receive import Received


@dataclass(frozen=True, slots=True)
class NoConnection:
    """The backend needs no connection."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A new version of the weights.

    manifest: path on this host of a weight file's manifest, perhaps with a note beside it about the
        place of its bytes (services.chassis.weights.collective).
    """

    manifest: str


class WeightTransfer:
    """Weights from a mapped file, or from a learner; vLLM's base class is added by `backend`.

    received: the kept samples of the last version, if it came from a learner; a file can be read
        again instead.
    """

    model: Any
    model_config: Any
    parallel_config: Any
    device: torch.device
    init_info_cls, update_info_cls = NoConnection, WeightUpdate
    received: Received | None = None

    def init_transfer_engine(self, init_info: NoConnection) -> None:
        """Do nothing: there is no connection."""

    def start_weight_update(self) -> None:
        """Make the model expect checkpoint tensors, layer by layer."""
        from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: WeightUpdate) -> None:
        """Load all tensors.

        Raise ValueError or a BanyanError, and leave the model unusable, if a tensor is missing or
        damaged.
        """
        self.received = None
        path = Path(update_info.manifest)
        manifest, place = file.read(path), collective.read(path)
        if place is None:
            self._load(path, _copies(file.read_tensors(manifest)))
            return
        received = Received(manifest, place, self.device)
        self._load(path, received.tensors(self._rank(place)))
        received.check()
        self.received = received

    def _rank(self, place: Place) -> int:
        """Return this worker's rank in the transfer; the learner has rank 0."""
        parallel = self.parallel_config
        workers = parallel.world_size * parallel.data_parallel_size
        if place.ranks != workers + 1:
            raise ValueError(
                f"a hand-over to {place.ranks - 1} workers, and vLLM has {workers};"
                " set its parallel sizes in resources.engine_settings of the recipe"
            )
        return int(1 + parallel.data_parallel_index * parallel.world_size + parallel.rank)

    def _load(self, path: Path, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        wanted = {name for name, _ in self.model.named_parameters()}
        missing = wanted - set(self.model.load_weights(tensors))
        for _ in tensors:  # tensors that the loader has not read must be received all the same
            pass
        if missing:
            raise ValueError(f"{path} lacks {min(missing)}; is it of another model?")

    def finish_weight_update(self) -> None:
        """Convert the tensors to the kernels' layout."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing: no resource is kept between updates."""


def backend() -> Any:
    """Return the class to register. It is made here, as vLLM is not installed everywhere."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

    class Banyan(WeightTransfer, WeightTransferEngine):  # type: ignore[misc]
        """The backend."""

    return Banyan


def _copies(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield copies of the model's own tensors, as a loader may write to its arguments."""
    return (
        (name, tensor.clone()) for name, tensor in tensors.items() if not name.startswith(file.HEAD)
    )
