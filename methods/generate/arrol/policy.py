"""arrol: rollouts of which about half are stopped early, so that right and wrong ones balance (ARRoL; card 18).

`width` independent rollouts are sampled to `detect` tokens. There the policy's learned head says how likely each is to be
right, and those that go on are thinned out by the rule of generate/survival.py; who has ended before stays. What is stopped
never becomes a leaf: it leaves the group, and its tokens are waste. While the head says nothing, or is sure of all, a random
share K is kept. The rule looks at one tree, so a group should be one tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.plugins import Branch, Expansion, GrowthView, Observation, checks
from banyan.segment import Finish
from banyan.signals import Wanted
from banyan.tree import Leaf, Tree
from methods.generate.arrol import survival
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.cuts import Run, run_at, upto

_HEAD = Wanted(head=True)


@dataclass(frozen=True)
class Arrol(Growing):
    """Pruning by a learned head, in flight."""

    width: int = 16
    """n: rollouts of a tree."""
    detect: int = 512
    """L_detect: tokens after which a rollout is judged."""
    keep: float = 0.5
    """K: share of the rollouts judged that goes on; 1 is iid."""
    share: float = 0.5
    """ρ: share of right ones wanted among these."""

    needs_head = True

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "detect"), 1)
        if isinstance(self.keep, bool) or not 0.0 < self.keep <= 1.0:
            raise ValueError(f"keep must be more than 0 and at most 1, got {self.keep!r}")
        if isinstance(self.share, bool) or not 0.0 < self.share < 1.0:
            raise ValueError(f"share must lie between 0 and 1, got {self.share!r}")

    async def grow(self, growth: Growth) -> None:
        """All rollouts up to where they are judged; then the rest of those that survive."""
        sampling = upto(growth.view.sampling, min(self.detect, growth.view.max_path_tokens))
        branches = [Branch(*growth.root, ordinal) for ordinal in range(growth.width(self.width))]
        started = [
            growth.start(_begin(growth, Expansion(b, sampling, (), _HEAD))) for b in branches
        ]
        begun = [await one for one in started]
        for run in self._survivors(
            begun, growth.rng.uniform("arrol.survivors", growth.view.root.id)
        ):
            growth.start(growth.path(Branch(run.last.id, len(run.last), 0), len(run)))

    def observations(self, tree: Tree, leaves: Sequence[Leaf]) -> list[Observation]:
        """Where the survivors were judged, with the chance that each had."""
        judged = {run.last.id: (len(run), s) for run, s in self._chances(_begun(tree))}
        found = []
        for leaf in leaves:
            at = next((judged[s.id] for s in tree.lineage(leaf.segment) if s.id in judged), None)
            if at is not None:
                found.append(Observation(leaf, at[0] - 1, at[1]))
        return found

    def _survivors(self, begun: Sequence[Run], u: float) -> list[Run]:
        judged = self._chances(begun)
        right = _right([run for run, _ in judged]) or [0.0] * len(judged)
        return [judged[i][0] for i in survival.drawn([s for _, s in judged], right, u)]

    def _chances(self, begun: Sequence[Run]) -> list[tuple[Run, float]]:
        """The rollouts that are judged, with the chance that each has to survive."""
        judged = [run for run in begun if _judged(run)]
        if not judged:
            return []
        count = survival.survivors(len(judged), len(begun) - len(judged), self.keep)
        right = _right(judged)
        wanted = (
            [self.keep] * len(judged)
            if right is None
            else survival.chances(right, self.keep, self.share)
        )
        return list(zip(judged, survival.fitted(wanted, count), strict=True))


async def _begin(growth: Growth, expansion: Expansion) -> Run:
    """A rollout up to where it is judged, or to its end."""
    run = await growth.run(expansion)
    if not _judged(run):
        growth.end(run)
    return run


def _judged(run: Run) -> bool:
    """Whether the rollout goes on where it is judged."""
    return run.last.finish is Finish.BOUNDARY


def _right(judged: Sequence[Run]) -> list[float] | None:
    """What the head said of each; None while it is cold."""
    said = [run.last.signals.head_T for run in judged]
    return [float(head_T[-1]) for head_T in said] if all(len(head_T) for head_T in said) else None


def _begun(tree: Tree) -> list[Run]:
    """The rollouts of a grown tree up to where they were judged."""
    view = GrowthView(tree, 0, 0)
    places = [Branch(s.parent, s.fork, s.ordinal) for s in tree.children.get(view.root.id, ())]
    return [run for run in (run_at(view, branch) for branch in places) if run is not None]
