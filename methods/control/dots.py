"""dots: prompts whose predicted success rate is near one half.

Paper: Sun et al. 2025, DOTS, arXiv 2506.05316
Formula: P(q) ∝ exp(−|d̂(q) − α| / τ)
Left out: replay, which is `replay` in the recipe; references beside the batch

Groups are counted in cycles of μ steps. The first `references` groups of a cycle are drawn evenly
from all rows; they are ordinary groups, trained on like the others, and their mean rewards, once a
batch holds them, predict all other rows' (difficulty.py). The rest of the cycle is drawn without
replacement by P(q), where d̂ comes from the newest known references; until some are known, evenly.
A draw is keyed by cycle and row, so it does not depend on the number of groups that are filled at a
time. Of tasks with more rows than `candidates`, a drawn share is considered in each cycle.

All groups that are counted here are fresh ones. The paper samples its references beside the batch,
256 / 2 + 256 = 384 groups a step instead of 512; here they are half of a cycle's groups, and a step
samples 256.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.draws import Draws, key, uniforms
from banyan.errors import InvalidInput
from banyan.plugins import Allocation, Budget, PromptStats, checks
from banyan.text import ngrams
from methods.control.difficulty import Predictor

F64 = npt.NDArray[np.float64]
_KEPT_VECTORS = 20_000


@dataclass(frozen=True)
class Dots:
    """Difficulty-targeted selection of prompts."""

    references: int = 256
    """Groups of a cycle whose rewards predict the others'; fewer than mu × groups_per_batch."""
    mu: int = 2
    """Steps of a cycle."""
    alpha: float = 0.5
    """Desired success rate."""
    tau: float = 1e-3
    """Temperature of the choice: small is greedy."""
    embedding: str = "ngrams"
    """ngrams, or a user's module:function that maps a prompt's text to a sequence of numbers;
    scaled to unit length."""
    candidates: int = 4096
    """Rows that are considered in a cycle at most."""
    _vectors: dict[int, npt.NDArray[np.floating]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _embed: list[Callable[[str], Any]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        checks.whole(self, ("references", "mu", "candidates"), 1)
        checks.finite(self, ("alpha", "tau"))
        if not 0.0 <= self.alpha <= 1.0 or self.tau <= 0.0:
            raise ValueError(
                f"alpha must lie in [0, 1] and tau above 0, got {self.alpha!r} and {self.tau!r}"
            )
        if not isinstance(self.embedding, str) or (
            self.embedding != "ngrams" and ":" not in self.embedding
        ):
            raise ValueError(f"embedding must be ngrams or module:function, got {self.embedding!r}")

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """Return references and chosen rows, cycle by cycle."""
        size = self.mu * budget.groups_per_batch
        if self.references >= size:
            raise InvalidInput(
                f"control.curriculum dots: {self.references} references leave nothing of a cycle "
                f"of {size} groups (mu × control.groups_per_batch) to choose; set "
                "curriculum_settings.references lower"
            )
        filled: list[Allocation] = []
        ordinals = budget.ordinals
        for cycle in range(
            ordinals.start // size, (ordinals.stop - 1) // size + 1 if ordinals else 0
        ):
            part = range(max(ordinals.start, cycle * size), min(ordinals.stop, (cycle + 1) * size))
            filled += self._cycle(prompts, cycle=cycle, size=size, part=part, seed=rng.seed)
        return filled

    def _cycle(
        self, prompts: PromptStats, cycle: int, size: int, part: range, seed: int
    ) -> list[Allocation]:
        first = cycle * size
        drawn = self._drawn(len(prompts.rows), cycle, seed)
        chosen = part[max(0, first + self.references - part.start) :]
        filled = [
            Allocation(
                int(drawn[(o - first) % len(drawn)]),
                why=f"reference {o - first + 1} of {self.references}",
            )
            for o in part[: len(part) - len(chosen)]
        ]
        if not chosen:
            return filled
        return filled + self._choose(
            prompts,
            cycle=cycle,
            size=size,
            place=chosen.start - first - self.references,
            count=len(chosen),
            seed=seed,
        )

    def _drawn(self, rows: int, cycle: int, seed: int) -> npt.NDArray[np.int64]:
        """Return all rows in an order drawn for the cycle."""
        return np.argsort(_uniforms(seed, "references", cycle, np.arange(rows)), kind="stable")

    def _choose(
        self, prompts: PromptStats, cycle: int, size: int, place: int, count: int, seed: int
    ) -> list[Allocation]:
        """Return `count` rows from a place after the cycle's references on."""
        drawn = self._drawn(len(prompts.rows), cycle, seed)
        wanted, first = size - self.references, 0
        pool = drawn[self.references : self.references + max(self.candidates, wanted)]
        if len(pool) < wanted:
            # The task is smaller than a cycle: rows are repeated, each as often as the others.
            rows, first = np.arange(len(drawn)), place
        else:
            rows = np.sort([row for row in pool.tolist() if prompts.of(row).newest < cycle * size])
        known, predictor = self._predictor(prompts, cycle, size, seed)
        noise = -np.log(-np.log(np.maximum(_uniforms(seed, "select", cycle, rows), 2.0**-54)))
        if predictor is None:
            best = rows[np.argsort(-noise, kind="stable")]
            return [
                Allocation(int(row), why="drawn: no reference has a reward yet")
                for row in _cycled(best, first, count)
            ]
        rates = predictor.predict(self._embedded(prompts, rows.tolist()))
        weights = log_weights(rates, self.alpha, self.tau)
        order = _cycled(np.argsort(-(weights + noise), kind="stable"), first, count)
        why = f"by {len(predictor.rewards_R)} references of cycle {known}"
        return [
            Allocation(int(rows[i]), why=f"predicted success {rates[i]:.3f} {why}") for i in order
        ]

    def _predictor(
        self, prompts: PromptStats, cycle: int, size: int, seed: int
    ) -> tuple[int, Predictor | None]:
        """Return the newest cycle with rewarded references, and the predictor from them."""
        for known in (cycle, cycle - 1, cycle - 2):
            rewards = self._rewards(prompts, known, size, seed) if known >= 0 else {}
            if rewards:
                return known, Predictor.fitted(
                    self._embedded(prompts, list(rewards)), np.array(list(rewards.values()))
                )
        return 0, None

    def _rewards(self, prompts: PromptStats, cycle: int, size: int, seed: int) -> dict[int, float]:
        """Return the mean rewards of a cycle's references, by row."""
        ordinals = range(cycle * size, cycle * size + self.references)
        rows = self._drawn(len(prompts.rows), cycle, seed)[: self.references].tolist()
        groups = [
            group
            for row in sorted(rows)
            for group in prompts.of(row).groups
            if group.ordinal in ordinals
        ]
        return {group.row: group.mean for group in groups if group.mean is not None}

    def _embedded(self, prompts: PromptStats, rows: Sequence[int]) -> npt.NDArray[np.floating]:
        if len(self._vectors) + len(rows) > _KEPT_VECTORS:
            self._vectors.clear()
        for row in rows:
            if row not in self._vectors:
                self._vectors[row] = self._vector(prompts.prompts[row])
        return np.stack([self._vectors[row] for row in rows])

    def _vector(self, text: str) -> npt.NDArray[np.floating]:
        if self.embedding == "ngrams":
            return ngrams.embed(text)
        if not self._embed:
            module, _, name = self.embedding.partition(":")
            self._embed.append(getattr(importlib.import_module(module), name))
        vector = np.asarray(self._embed[0](text), np.float32)
        length = float(np.sqrt((vector * vector).sum()))
        return vector / length if length else vector


def log_weights(rates_Q: F64, alpha: float, tau: float) -> F64:
    """Return the logarithms of the rows' weights in the draw."""
    return np.asarray(-np.abs(rates_Q - alpha) / tau)


def _uniforms(seed: int, purpose: str, cycle: int, rows: npt.NDArray[np.int64]) -> F64:
    keys = np.full(len(rows), key(seed, f"dots {purpose}", cycle), np.uint64)
    return uniforms(keys, rows.astype(np.uint64))


def _cycled(order: npt.NDArray[np.int64], first: int, count: int) -> npt.NDArray[np.int64]:
    return np.asarray(order[np.arange(first, first + count) % len(order)])
