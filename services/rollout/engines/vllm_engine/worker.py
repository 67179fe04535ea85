"""Methods added to vLLM's workers: load a version of the weights, and read it back."""

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
        """Load a version; return the error's message where that fails, else "".

        It never raises: of several workers vLLM would receive the first error only, and take the
        answers of the others for those to its next call.
        """
        try:
            self.start_weight_update()
            self.update_weights({"manifest": manifest})
            self.finish_weight_update()
        except Exception as error:  # see above
            self._weight_update_active = False  # so that the next update may begin
            log.warning("a worker cannot take %s", manifest, exc_info=True)
            return str(error).strip() or type(error).__name__
        return ""

    def read_back(self, manifest: str) -> tuple[list[str], list[str]]:
        """Return tensors of a version that the model does not use, and those not comparable."""
        stored = file.read(Path(manifest))
        received = self.weight_transfer_engine.received
        if received is not None and received.digest == stored.digest:
            expected: Mapping[str, Sample] = received.samples
        elif stored.path.exists():
            expected = readback.samples(file.read_tensors(stored), stored.digest)
        else:
            names = (tensor.name for tensor in stored.tensors)
            return [], sorted(name for name in names if not name.startswith(file.HEAD))
        model = self.model_runner.get_model()
        return readback.compare(model, expected, stored.aliases, stored.digest)
