"""treepo: a tree of fixed-length segments with a branch budget per wave.

Paper: Li et al. 2025, TreePO, arXiv 2508.17445
Formula: a wave has B = max(P, min(W − F, d·f + d·P)) children for P live paths

Depth 0 gives the prompt d branches. When all live paths have their segment, those that ended give
their share to the others: B children for P live paths, F finished ones, f of them in this wave. If
no path lives and leaves are missing, a finished path is cut and branched again. A tree always ends
with exactly W leaves.
"""

from dataclasses import dataclass, field

import numpy as np

from banyan.plugins import Branch
from banyan.segment import Finish, Segment
from banyan.tree import Leaf
from methods.generate.coroutine_policy import Growth
from methods.generate.cuts import Run
from methods.generate.treepo import budget
from methods.generate.treepo.segmented import Paths, Segmented


@dataclass(frozen=True)
class TreePO(Segmented):
    """Segment-wise tree sampling with budget transfer and fallback."""

    budget: str = "fixed_avg"
    """Division of a wave's budget: fixed_avg, or weights by log-prob (see treepo/budget.py)."""
    weight_temperature: float = 1.0
    """T of those weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("budget", budget.POLICIES)
        if not self.weight_temperature > 0:
            raise ValueError(
                f"weight_temperature must be more than 0, got {self.weight_temperature!r}"
            )

    async def grow(self, growth: Growth) -> None:
        """Grow wave after wave."""
        await _Waves(self, growth, growth.width(self.width), Paths(self, growth.view)).grow()


@dataclass(frozen=True, slots=True)
class _Path:
    """Path at the end of its last run.

    run: segments of its last run
    tokens: policy tokens up to its end
    reason: reason why it ends; None if it goes on
    """

    run: Run
    tokens: int
    reason: str | None


@dataclass(slots=True)
class _Waves:
    """Waves of one tree.

    used: number of ordinals used at a place
    leaves: leaves so far
    resumable: leaves that a fallback may cut
    """

    policy: TreePO
    growth: Growth
    width: int
    paths: Paths
    used: dict[tuple[bytes, int], int] = field(default_factory=dict)
    leaves: int = 0
    resumable: list[Leaf] = field(default_factory=list)

    async def grow(self) -> None:
        wave = self._branches(
            self.growth.view.root,
            len(self.growth.view.root),
            min(self.policy.divisor, self.width),
            0,
        )
        for number in range(1, 1 << 30):
            begun = [self.growth.start(self._path(*branch)) for branch in wave]
            paths = [await path for path in begun]
            ended = [path for path in paths if path.reason is not None]
            self.leaves += len(ended)
            self.resumable += [
                path.run.leaf for path in ended if path.reason in ("finished", "stop")
            ]
            if len(ended) < len(paths):
                wave = self._spread([path for path in paths if path.reason is None], len(ended))
            elif self.leaves < self.width:
                wave = self._fall_back(number)
            else:
                return

    def _branches(
        self, parent: Segment, fork: int, count: int, tokens: int
    ) -> list[tuple[Branch, int]]:
        """Return new branches at a place behind `tokens` policy tokens, under its free ordinals."""
        # Ordinal 0 at the end of a cut segment is its continuation.
        taken = 1 if parent.finish is Finish.ABORTED and fork == len(parent) else 0
        first = self.used.get((parent.id, fork), taken)
        self.used[(parent.id, fork)] = first + count
        return [(Branch(parent.id, fork, first + i), tokens) for i in range(count)]

    async def _path(self, branch: Branch, start: int) -> _Path:
        """Sample a path of a wave; mark its leaf if it ends."""
        run = await self.growth.run(self.paths.expansion(branch, start))
        tokens = start + len(run)
        reason = self.paths.ending(run, tokens)
        if reason is not None:
            self.growth.mark(run.leaf, reason)
        return _Path(run, tokens, reason)

    def _spread(self, live: list[_Path], finished_now: int) -> list[tuple[Branch, int]]:
        """Return the next wave: children of the live paths."""
        total = budget.total(
            live=len(live),
            finished=self.leaves,
            finished_now=finished_now,
            width=self.width,
            divisor=self.policy.divisor,
        )
        counts = budget.split(total, self._weights(live), len(live))
        return [
            branch
            for path, count in zip(live, counts, strict=True)
            for branch in self._branches(path.run.last, len(path.run.last), count, path.tokens)
        ]

    def _weights(self, live: list[_Path]) -> list[float] | None:
        name = self.policy.budget
        if name == "fixed_avg":
            return None
        kind = name.removeprefix("inverse_")
        values: list[float] = []
        for path in live:
            parts = (
                path.run.logprobs
                if kind == "node_logprob_weighted"
                else [self.paths.logprobs(path.run.leaf)]
            )
            joined = np.concatenate(parts).astype(np.float64)
            values.append(float(joined.sum() if kind == "logprob_weighted" else joined.mean()))
        return budget.weights(values, kind != name, self.policy.weight_temperature)

    def _fall_back(self, wave: int) -> list[tuple[Branch, int]]:
        """Return branches from inside a finished path, or from the root if none finished."""
        root, count = self.growth.view.root, min(self.policy.divisor, self.width - self.leaves)
        if not self.resumable:
            return self._branches(root, len(root), count, 0)
        leaf = self.growth.rng.shuffled(self.resumable, "treepo.candidates", wave)[0]
        parent, fork, keep = self.paths.cut(leaf, self.growth.rng, wave)
        return self._branches(parent, fork, count, keep)
