"""Trains the policy's value head on the states of the learner's own forward passes.

One gradient step per policy step, as in ARRoL (Prune as You Generate; ADR 017). Loss: binary
cross-entropy against the rewards of paths, each weighted by 1/s, where s is the probability that
its path was kept: the paths that remain are a biased sample. States are detached: the head changes
no weight of the model. The head's scores before each step and the outcomes are kept for the last
`window` observations; the calibration is made from these.
"""

from collections import deque
from collections.abc import Iterable, Mapping

import torch

from banyan.recipe import Head as Settings
from services.chassis.weights import value_head as heads
from services.chassis.weights.file import HEAD
from services.chassis.weights.value_head import ValueHead
from services.learner.model.calibration import points
from services.learner.packing.head_observations import HeadObservations

_STEPS = f"{HEAD}steps"
_WINDOW = f"{HEAD}window"
_ADAM = f"{HEAD}adam."

Batch = tuple[torch.Tensor, HeadObservations]  # states [O, D], and what came of them


class HeadTrainer:
    """A head with its optimizer and its last observations, each (score, reward, 1/s)."""

    def __init__(self, size: int, settings: Settings, seed: int, device: torch.device) -> None:
        self.settings = settings
        self.steps = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.head = ValueHead(size, settings.width, settings.bins).to(device)
        self._named = dict(self.head.named_parameters())
        self._adam = torch.optim.Adam(self._named.values(), lr=settings.learning_rate)
        self._window: deque[tuple[float, float, float]] = deque(maxlen=settings.window)
        self._batch: list[Batch] = []

    def observe(self, state_U_D: torch.Tensor, observations: HeadObservations) -> None:
        """Add the observations of a sequence to the batch."""
        if len(observations):
            place_O = torch.from_numpy(observations.place_O).to(state_U_D.device)
            self._batch.append((state_U_D.detach()[place_O].float(), observations))

    def pop_batch(self) -> list[Batch]:
        """Return the observations of the batch, for the rank that learns, and drop them here."""
        batch, self._batch = self._batch, []
        return batch

    def set_batch(self, batches: Iterable[Batch]) -> None:
        """Replace the observations by those of all ranks."""
        self._batch = list(batches)

    def drop_batch(self) -> None:
        """Drop the observations of the batch without learning from them."""
        self._batch.clear()

    def step(self) -> dict[str, float]:
        """Learn from the batch, and return the metrics of the head before that."""
        batch = self.pop_batch()
        if not batch:
            return {"head_observations": 0.0}
        state_O_D = torch.cat([state for state, _ in batch])
        label_O = self._column(batch, "label_O")
        weight_O = 1.0 / self._column(batch, "kept_O")
        with torch.no_grad():
            p_O = self.head(state_O_D)
        logit_O = self.head.logits(state_O_D)
        loss_O = torch.nn.functional.binary_cross_entropy_with_logits(
            logit_O, label_O, reduction="none"
        )
        loss = (loss_O * weight_O).sum() / weight_O.sum()
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        self.steps += 1
        self._calibrate(logit_O.detach().sigmoid(), label_O, weight_O)
        recorded_O = self._column(batch, "recorded_O")
        return self._metrics(float(loss.detach()), p_O, label_O, recorded_O)

    @staticmethod
    def _column(batch: list[Batch], name: str) -> torch.Tensor:
        device = batch[0][0].device
        columns = [getattr(observations, name) for _, observations in batch]
        return torch.cat([torch.from_numpy(column).float().to(device) for column in columns])

    def _calibrate(
        self, raw_O: torch.Tensor, label_O: torch.Tensor, weight_O: torch.Tensor
    ) -> None:
        """Add scores and outcomes to the window, and calibrate the head anew."""
        self._window.extend(zip(raw_O.tolist(), label_O.tolist(), weight_O.tolist(), strict=True))
        raw, right, weights = zip(*self._window, strict=True)
        raw_B, right_B = points(raw, right, weights, self.settings.bins)
        self.head.raw_B.copy_(torch.from_numpy(raw_B))
        self.head.right_B.copy_(torch.from_numpy(right_B))
        self.head.heard.fill_(float(self.steps >= self.settings.cold_steps))

    @staticmethod
    def _metrics(
        loss: float, p_O: torch.Tensor, label_O: torch.Tensor, recorded_O: torch.Tensor
    ) -> dict[str, float]:
        metrics = {
            "head_observations": float(len(label_O)),
            "head_positives": float(label_O.mean()),
            "head_loss": loss,
            "head_brier": float((p_O - label_O).square().mean()),
        }
        known = recorded_O.isfinite()
        if bool(known.any()):
            metrics["head_mismatch"] = float((p_O - recorded_O)[known].abs().mean())
        return metrics

    # -- what is kept --

    def published(self) -> dict[str, torch.Tensor]:
        """Return the head's tensors for the weight file."""
        return heads.tensors(self.head)

    def state(self) -> dict[str, torch.Tensor]:
        """Return all that a checkpoint needs: the head, its optimizer, its last observations."""
        adam = {
            f"{_ADAM}{kind}.{name}": value
            for name, weight in self._named.items()
            for kind, value in self._adam.state.get(weight, {}).items()
        }
        window = torch.tensor(list(self._window), dtype=torch.float64).reshape(-1, 3)
        return self.published() | adam | {_STEPS: torch.tensor(self.steps), _WINDOW: window}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checkpoint's state; training goes on bit for bit."""
        self.head.load_state_dict({name: state[HEAD + name] for name in self.head.state_dict()})
        self.steps = int(state[_STEPS])
        self._window.clear()
        self._window.extend((raw, label, weight) for raw, label, weight in state[_WINDOW].tolist())
        self._adam.state.clear()
        adam_keys = [key.removeprefix(_ADAM) for key in state if key.startswith(_ADAM)]
        kinds = {key.split(".", 1)[0] for key in adam_keys}
        for name, weight in self._named.items():
            kept: dict[str, torch.Tensor] = {}
            for kind in (kind for kind in kinds if f"{kind}.{name}" in adam_keys):
                # torch.optim.Adam reads its count of steps on the host, wherever it computes.
                device = "cpu" if kind == "step" else weight.device
                kept[kind] = state[f"{_ADAM}{kind}.{name}"].to(device, copy=True)
            if kept:
                self._adam.state[weight] = kept


def build(
    size: int, settings: Settings | None, seed: int, device: torch.device
) -> HeadTrainer | None:
    """Return the trainer of a recipe's head; None for a recipe without one."""
    return None if settings is None else HeadTrainer(size, settings, seed, device)
