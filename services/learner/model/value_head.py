"""Trains the policy's head on the states of the learner's own forward pass: one gradient step per policy step (card 18).

Loss: binary cross-entropy against the paths' rewards, each weighted by 1/s where s is how likely its path was kept: those
that are there are a biased sample. The states are detached: the head changes no weight of the model. What it said before
each step, and what came of it, is kept for the last `window` observations; the calibration is made of these.
"""

from collections import deque
from collections.abc import Iterable, Mapping

import torch

from banyan.recipe import Head as Settings
from services.chassis.weights import value_head as heads
from services.chassis.weights.file import HEAD
from services.chassis.weights.value_head import ValueHead
from services.learner.model.calibration import points
from services.learner.packing.head_observations import Watched

_STEPS, _WINDOW, _ADAM = f"{HEAD}steps", f"{HEAD}window", f"{HEAD}adam."
Batch = tuple[torch.Tensor, Watched]


class HeadTrainer:
    """A head with its optimizer and its last observations: (what it said, reward, 1/s)."""

    def __init__(self, size: int, settings: Settings, seed: int, device: torch.device) -> None:
        self.settings, self.steps = settings, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.head = ValueHead(size, settings.width, settings.bins).to(device)
        self._named = dict(self.head.named_parameters())
        self._adam = torch.optim.Adam(self._named.values(), lr=settings.learning_rate)
        self._window: deque[tuple[float, float, float]] = deque(maxlen=settings.window)
        self._batch: list[Batch] = []

    def observe(self, state_N_H: torch.Tensor, watched: Watched) -> None:
        """Takes what a row of the batch shows."""
        if len(watched):
            place_S = torch.from_numpy(watched.place_S).to(state_N_H.device)
            self._batch.append((state_N_H.detach()[place_S].float(), watched))

    def handed_over(self) -> list[Batch]:
        """What this batch showed, for the rank that learns from it; here it is gone."""
        batch, self._batch = self._batch, []
        return batch

    def take_over(self, shown: Iterable[Batch]) -> None:
        """Takes what a batch showed to all ranks."""
        self._batch = list(shown)

    def forget(self) -> None:
        """Drops what this batch showed: nothing is learned from it."""
        self._batch.clear()

    def step(self) -> dict[str, float]:
        """Learns from the batch; what the head was worth before it did."""
        batch, self._batch = self._batch, []
        if not batch:
            return {"head_observations": 0.0}
        state = torch.cat([s for s, _ in batch])
        label, kept, said = (self._column(batch, name) for name in ("label_S", "kept_S", "said_S"))
        with torch.no_grad():
            p = self.head(state)
        logits, weight = self.head.logits(state), 1.0 / kept
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        loss = (each * weight).sum() / weight.sum()
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        self.steps += 1
        self._note(logits.detach().sigmoid(), label, weight)
        return self._metrics(float(loss.detach()), p, label, said)

    @staticmethod
    def _column(batch: list[Batch], name: str) -> torch.Tensor:
        device = batch[0][0].device
        return torch.cat(
            [torch.from_numpy(getattr(watched, name)).float().to(device) for _, watched in batch]
        )

    def _note(self, raw: torch.Tensor, label: torch.Tensor, weight: torch.Tensor) -> None:
        """Keeps what the head said and what came of it; calibrates it anew."""
        self._window.extend(zip(raw.tolist(), label.tolist(), weight.tolist(), strict=True))
        said, right, weights = zip(*self._window, strict=True)
        raw_B, right_B = points(said, right, weights, self.settings.bins)
        self.head.raw_B.copy_(torch.from_numpy(raw_B))
        self.head.right_B.copy_(torch.from_numpy(right_B))
        self.head.heard.fill_(float(self.steps >= self.settings.cold_steps))

    @staticmethod
    def _metrics(
        loss: float, p: torch.Tensor, label: torch.Tensor, said: torch.Tensor
    ) -> dict[str, float]:
        found = {
            "head_observations": float(len(label)),
            "head_positives": float(label.mean()),
            "head_loss": loss,
        }
        found["head_brier"] = float((p - label).square().mean())
        heard = said.isfinite()
        if bool(heard.any()):
            found["head_mismatch"] = float((p - said)[heard].abs().mean())
        return found

    # -- what is kept --

    def published(self) -> dict[str, torch.Tensor]:
        """The head as it lies in the weight file."""
        return heads.tensors(self.head)

    def state(self) -> dict[str, torch.Tensor]:
        """All that a checkpoint needs: the head, its optimizer, its last observations."""
        adam = {
            f"{_ADAM}{kind}.{name}": value
            for name, weight in self._named.items()
            for kind, value in self._adam.state.get(weight, {}).items()
        }
        window = torch.tensor(list(self._window), dtype=torch.float64).reshape(-1, 3)
        return self.published() | adam | {_STEPS: torch.tensor(self.steps), _WINDOW: window}

    def restore(self, held: Mapping[str, torch.Tensor]) -> None:
        """Takes a checkpoint's state; training goes on bit for bit."""
        self.head.load_state_dict({name: held[HEAD + name] for name in self.head.state_dict()})
        self.steps = int(held[_STEPS])
        self._window.clear()
        self._window.extend((raw, label, weight) for raw, label, weight in held[_WINDOW].tolist())
        self._adam.state.clear()
        for name, weight in self._named.items():
            kinds = {
                key.removeprefix(_ADAM).split(".", 1)[0] for key in held if key.startswith(_ADAM)
            }
            own = {
                kind: held[f"{_ADAM}{kind}.{name}"]
                for kind in kinds
                if f"{_ADAM}{kind}.{name}" in held
            }
            # Its count of steps is read on the host, wherever it computes (torch.optim.Adam).
            kept = {
                k: t.to("cpu" if k == "step" else weight.device, copy=True) for k, t in own.items()
            }
            if kept:
                self._adam.state[weight] = kept


def made(
    size: int, settings: Settings | None, seed: int, device: torch.device
) -> HeadTrainer | None:
    """The trainer of a recipe's head; None where it asks for none."""
    return None if settings is None else HeadTrainer(size, settings, seed, device)
