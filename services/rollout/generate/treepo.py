"""treepo: a tree of fixed-length segments with a branch budget per wave (Li et al. 2025, TreePO; card 2).

Depth 0 gives the prompt d branches. When all live paths have their segment, those that ended give their share to the
others: B = max(P, min(W - F, d·f + d·P)) children for P live paths. Where no path lives and leaves are missing, a
finished path is cut and branched again. The plan replays the waves from the recorded tree, so it is idempotent, and a
tree always ends with exactly W leaves.
"""

from dataclasses import dataclass, field

import numpy as np

from banyan.draws import Draws
from banyan.plugins import Branch, GrowthView, LeafMark, Plan, Room
from banyan.segment import Finish, Segment
from banyan.tree import Leaf
from services.rollout.generate import budget
from services.rollout.generate.cuts import Run, continuations, run_at
from services.rollout.generate.segmented import Paths, Segmented


@dataclass(frozen=True)
class TreePO(Segmented):
    """Segment-wise tree sampling with budget transfer and fallback."""

    budget: str = "fixed_avg"
    """How a wave's budget is shared: fixed_avg, or weights by log-prob (see generate/budget.py)."""
    weight_temperature: float = 1.0
    """T of those weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("budget", budget.POLICIES)
        if not self.weight_temperature > 0:
            raise ValueError(f"weight_temperature must be more than 0, got {self.weight_temperature!r}")

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """Replays the waves; asks for the first one that is not all there."""
        width = self.width if room.max_leaves is None else min(self.width, room.max_leaves)
        return _Replay(self, view, width, rng, Paths(self, view)).plan()


@dataclass(slots=True)
class _Path:
    """A live path: its last run, and the policy tokens up to its end."""

    run: Run
    tokens: int


@dataclass(slots=True)
class _Replay:
    """The waves of one tree, from its first to the one that is under way."""

    policy: TreePO
    view: GrowthView
    width: int
    rng: Draws
    paths: Paths
    used: dict[tuple[bytes, int], int] = field(default_factory=dict)  # ordinals given at a place
    marks: list[LeafMark] = field(default_factory=list)
    resumable: list[tuple[Leaf, int]] = field(default_factory=list)  # leaves that a fallback may cut, with their tokens

    def plan(self) -> Plan:
        root = self.view.root
        wave = self._branches(root, len(root), min(self.policy.divisor, self.width), 0)
        for number in range(1, 1 << 30):
            runs = [run_at(self.view, branch) for branch, _ in wave]
            before = len(self.marks)
            ends = [self._advance(run, at) for run, (_, at) in zip(runs, wave, strict=True) if run is not None]
            if None in runs:
                return Plan((*(self.paths.expansion(b, at) for b, at in wave), *continuations(self.view)), tuple(self.marks))
            live = [path for path in ends if path is not None]
            if live:
                wave = self._spread(live, len(self.marks) - before)
            elif len(self.marks) < self.width:
                wave = self._fall_back(number)
            else:
                break
        return Plan(leaves=tuple(self.marks), done=True)

    def _branches(self, parent: Segment, fork: int, count: int, tokens: int) -> list[tuple[Branch, int]]:
        """New branches at a place behind `tokens` policy tokens, under the ordinals that are free there."""
        taken = 1 if parent.finish is Finish.ABORTED and fork == len(parent) else 0  # its continuation
        first = self.used.get((parent.id, fork), taken)
        self.used[(parent.id, fork)] = first + count
        return [(Branch(parent.id, fork, first + i), tokens) for i in range(count)]

    def _advance(self, run: Run, start: int) -> _Path | None:
        """The path if it goes on; else its leaf is marked."""
        tokens, leaf = start + len(run), Leaf(run.last.id, len(run.last))
        reason = self.paths.ending(run, leaf, tokens)
        if reason is None:
            return _Path(run, tokens)
        self.marks.append(LeafMark(leaf, reason))
        if reason in ("finished", "stop"):
            self.resumable.append((leaf, tokens))
        return None

    def _spread(self, live: list[_Path], finished_now: int) -> list[tuple[Branch, int]]:
        """The next wave: children of the live paths."""
        total = budget.total(len(live), len(self.marks), finished_now, self.width, self.policy.divisor)
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
                else [self.paths.logprobs(Leaf(path.run.last.id, len(path.run.last)))]
            )
            joined = np.concatenate(parts).astype(np.float64)
            values.append(float(joined.sum() if kind == "logprob_weighted" else joined.mean()))
        return budget.weights(values, kind != name, self.policy.weight_temperature)

    def _fall_back(self, wave: int) -> list[tuple[Branch, int]]:
        """Branches again from inside a finished path, or from the root where none finished."""
        count = min(self.policy.divisor, self.width - len(self.marks))
        if not self.resumable:
            return self._branches(self.view.root, len(self.view.root), count, 0)
        leaf, _ = self.rng.shuffled(self.resumable, "treepo.candidates", wave)[0]
        parent, fork, keep = self.paths.cut(leaf, self.rng, wave)
        return self._branches(parent, fork, count, keep)
