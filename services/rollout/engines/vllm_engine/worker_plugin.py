"""What runs inside vLLM's own processes: how its workers take weights, and that none of them outlives the node.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). The weight transfer backend `banyan`
maps the weight file that the node checked and loads it as a checkpoint: no copy passes between processes. Where the learner
hands weights over by collectives there is no file, and each worker receives, and checks, the bytes itself (vllm_received).
"""

import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from services.rollout.engines.vllm_engine.receive import Received

BACKEND = "banyan"


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is no connection to set up."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """manifest: path of a weight file's manifest, on this host; perhaps with a note where its bytes are (handover)."""

    manifest: str


def register() -> None:
    """Makes the backend known in this process, and ties the process to the one that started it."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from services.chassis.process import parent_death

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, _backend())
    if (started_by := multiprocessing.parent_process()) is not None and started_by.pid is not None:
        parent_death.die_with(
            started_by.pid, signal.SIGKILL
        )  # one that waits for another takes no notice of less


def _backend() -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.model_executor.model_loader.reload.layerwise import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    from services.chassis.weights import collective, file
    from services.rollout.engines.vllm_engine import receive

    class Banyan(WeightTransferEngine):  # type: ignore[misc]
        """Weights out of a mapped file, or from a learner. received: what is kept of those that came last, if they came
        from there; a file can be looked at again."""

        init_info_cls, update_info_cls = Nothing, WeightUpdate
        received: "Received | None" = None

        def init_transfer_engine(self, init_info: Nothing) -> None:
            """Nothing to set up."""

        def start_weight_update(self) -> None:
            """From here on the model waits for checkpoint tensors, layer by layer."""
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: WeightUpdate) -> None:
            """Loads all tensors. Raises ValueError or a BanyanError, and leaves the model unusable, if one lacks or came
            wrong."""
            self.received, path = None, Path(update_info.manifest)
            manifest, place = file.read(path), collective.read(path)
            if place is None:
                self._load(path, _copies(file.read_tensors(manifest)))
                return
            parallel = self.parallel_config
            world = parallel.world_size * parallel.data_parallel_size
            if place.ranks != world + 1:
                raise ValueError(
                    f"a hand-over to {place.ranks - 1} workers, and vLLM has {world}: say its sizes in the recipe"
                )
            received = receive.Received(manifest, place, self.device)
            at = parallel.data_parallel_index * parallel.world_size + parallel.rank
            self._load(path, received.tensors(1 + at))
            received.check()
            self.received = received

        def _load(self, path: Path, tensors: "Iterator[tuple[str, torch.Tensor]]") -> None:
            wanted = {name for name, _ in self.model.named_parameters()}
            missing = wanted - set(self.model.load_weights(tensors))
            for _ in tensors:  # what a loader leaves must be received all the same
                pass
            if missing:
                raise ValueError(f"{path} lacks {min(missing)}; is it of another model?")

        def finish_weight_update(self) -> None:
            """Turns the tensors into the form that the kernels want."""
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """Nothing is held between updates."""

    return Banyan


def _copies(held: "Mapping[str, torch.Tensor]") -> "Iterator[tuple[str, torch.Tensor]]":
    """The model's own tensors: copies, as a loader may write into what it is given."""
    from services.chassis.weights import file

    return (
        (name, tensor.clone()) for name, tensor in held.items() if not name.startswith(file.HEAD)
    )
