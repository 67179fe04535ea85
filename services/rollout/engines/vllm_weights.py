"""What runs inside vLLM's own processes: how its workers take weights, and that none of them outlives the node.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). The weight transfer backend `banyan`
maps the weight file that the node checked and loads it as a checkpoint: no copy passes between processes. A worker on
another host would need another backend.
"""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKEND = "banyan"


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is no connection to set up."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """manifest: path of a weight file's manifest, on this host."""

    manifest: str


def register() -> None:
    """Makes the backend known in this process, and ties the process to the one that started it."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from services.chassis import parent

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, _backend())
    if (started_by := multiprocessing.parent_process()) is not None and started_by.pid is not None:
        parent.die_with(started_by.pid)


def _backend() -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    from services.chassis import weightfile

    class MappedFile(WeightTransferEngine):  # type: ignore[misc]
        """Weights out of a mapped file."""

        init_info_cls, update_info_cls = Nothing, WeightUpdate

        def init_transfer_engine(self, init_info: Nothing) -> None:
            """Nothing to set up."""

        def start_weight_update(self) -> None:
            """From here on the model waits for checkpoint tensors, layer by layer."""
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: WeightUpdate) -> None:
            """Loads all tensors of a file. Raises ValueError, and leaves the model unusable, if it lacks one."""
            held = weightfile.read_tensors(weightfile.read(Path(update_info.manifest)))
            tensors = {name: tensor for name, tensor in held.items() if not name.startswith(weightfile.HEAD)}
            wanted = {name for name, _ in self.model.named_parameters()}
            copies = ((name, tensor.clone()) for name, tensor in tensors.items())  # a loader may write into what it is given
            missing = wanted - set(self.model.load_weights(copies))
            if missing:
                raise ValueError(f"{update_info.manifest} lacks {min(missing)}; is it of another model?")

        def finish_weight_update(self) -> None:
            """Turns the tensors into the form that the kernels want."""
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """Nothing is held between updates."""

    return MappedFile
