"""What vLLM's workers do for a node beside their own: they take a version of the weights, and say what they compute with."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.chassis.weights import file
from services.rollout.engines.vllm_engine import readback
from services.rollout.engines.vllm_engine.readback import Sample

log = logging.getLogger(__name__)


class Extension:
    """Methods that vLLM adds to its worker class (`worker_extension_cls`)."""

    model_runner: Any
    weight_transfer_engine: Any
    start_weight_update: Any
    update_weights: Any
    finish_weight_update: Any
    _weight_update_active: bool

    def take(self, manifest: str) -> str:
        """Takes a version; why it could not, in words. It never raises: of several workers vLLM would hear the first that
        does, and take what the others say for answers to what it asks next."""
        try:
            self.start_weight_update()
            self.update_weights({"manifest": manifest})
            self.finish_weight_update()
        except Exception as error:
            self._weight_update_active = False  # the next one begins anew
            log.warning("a worker cannot take %s", manifest, exc_info=True)
            return str(error).strip() or type(error).__name__
        return ""

    def read_back(self, manifest: str) -> tuple[list[str], list[str]]:
        """Tensors of a version that the model does not compute with, and those that cannot be asked of it."""
        held = file.read(Path(manifest))
        received = self.weight_transfer_engine.received
        if received is not None and received.digest == held.digest:
            own: Mapping[str, Sample] = received.samples
        elif held.path.exists():
            own = readback.samples(file.read_tensors(held), held.digest)
        else:
            return [], sorted(t.name for t in held.tensors if not t.name.startswith(file.HEAD))
        return readback.compare(self.model_runner.get_model(), own, held.aliases, held.digest)
