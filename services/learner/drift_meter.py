"""A meter of a run's drift from its start, on paths of its first batch (training/drift.py)."""

from services.chassis.process import telemetry
from services.learner.packing.packing import PackedSequence
from services.learner.ports import Store
from services.learner.training import drift
from services.learner.training.trainer_thread import TorchThread


class DriftMeter:
    """Measures the drift of one run, at the steps where that is due."""

    def __init__(self, store: Store, torch_thread: TorchThread, last_step: int) -> None:
        self._store, self._torch, self._last_step = store, torch_thread, last_step
        self._probe: list[PackedSequence] | None = None  # read when first needed

    async def measure(self, step: int, learning_rate: float) -> dict[str, float]:
        """Return the metrics of the drift at a step; empty where none is due."""
        if not drift.due(step, self._last_step):
            return {}
        if self._probe is None:
            self._probe = await self._first_paths()
        metrics = await self._torch.drift(self._probe)
        if "start_kl" in metrics:
            telemetry.observe("banyan.step.start_kl", metrics["start_kl"])
        whole_rate = metrics.pop("whole_rate", 0.0)
        return metrics | ({"relative_rate": learning_rate / whole_rate} if whole_rate else {})

    async def _first_paths(self) -> list[PackedSequence]:
        """Return paths that the starting model sampled; none where the store has lost them."""
        first = await self._store.batch(0)
        if first is None or first.set_aside:
            return []
        return await self._torch.probe(await self._store.trees(first.tree_ids[: drift.TREES]))
