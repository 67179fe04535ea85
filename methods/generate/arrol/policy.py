"""arrol: independent samples, of which about half are stopped early to balance right and wrong.

Paper: Xu et al. 2026, ARRoL, Prune as You Generate, arXiv 2603.24840
Formula: rollout i survives with s_i = p_i·min(1, Kρ/p̄) + (1−p_i)·min(1, K(1−ρ)/(1−p̄))
Left out: the paper's own head and rule, which are not public; these are inferred (ADR 017)

`width` independent rollouts are sampled to `detect` tokens. There the policy's learned head scores
each for its chance to be right, and those that go on are thinned by the rule of survival.py;
rollouts that have ended stay. A stopped rollout never becomes a leaf: it leaves the group, and its
tokens are waste. While the head is cold, or sure of all, a random share K is kept. The rule
concerns one tree, so a group should be one tree. Votes at test time are those of `eval.votes`: with
`keep: 1` all rollouts are judged, and none is stopped (ADR 076).
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
    """Pruning of running rollouts by a learned head."""

    width: int = 16
    """n: rollouts of a tree."""
    detect: int = 512
    """L_detect: tokens after which a rollout is judged."""
    keep: float = 0.5
    """K: share of the judged rollouts that go on; 1 is iid."""
    share: float = 0.5
    """ρ: desired share of right ones among these."""

    needs_head = True

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "detect"), 1)
        if isinstance(self.keep, bool) or not 0.0 < self.keep <= 1.0:
            raise ValueError(f"keep must be more than 0 and at most 1, got {self.keep!r}")
        if isinstance(self.share, bool) or not 0.0 < self.share < 1.0:
            raise ValueError(f"share must lie between 0 and 1, got {self.share!r}")

    async def grow(self, growth: Growth) -> None:
        """Sample all rollouts to their judgement, then the survivors to their ends."""
        sampling = upto(growth.view.sampling, min(self.detect, growth.view.max_path_tokens))
        branches = [Branch(*growth.root, ordinal) for ordinal in range(growth.width(self.width))]
        started = [
            growth.start(_begin(growth, Expansion(b, sampling, signals=_HEAD))) for b in branches
        ]
        begun = [await slot for slot in started]
        for run in self._survivors(
            begun, growth.rng.uniform("arrol.survivors", growth.view.root.id)
        ):
            growth.start(growth.path(Branch(run.last.id, len(run.last), 0), len(run)))

    def observations(self, tree: Tree, leaves: Sequence[Leaf]) -> list[Observation]:
        """Return the places where the survivors were judged, with their chances to survive."""
        judged = {run.last.id: (len(run), s) for run, s in self._chances(_begun(tree))}
        observations = []
        for leaf in leaves:
            at = next((judged[s.id] for s in tree.lineage(leaf.segment) if s.id in judged), None)
            if at is not None:
                observations.append(Observation(leaf, at[0] - 1, at[1]))
        return observations

    def _survivors(self, begun: Sequence[Run], u: float) -> list[Run]:
        judged = self._chances(begun)
        right = _right([run for run, _ in judged]) or [0.0] * len(judged)
        return [judged[i][0] for i in survival.drawn([s for _, s in judged], right, u)]

    def _chances(self, begun: Sequence[Run]) -> list[tuple[Run, float]]:
        """Return the judged rollouts, each with its chance to survive."""
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
    """Sample a rollout to its judgement, or to its end."""
    run = await growth.run(expansion)
    if not _judged(run):
        growth.end(run)
    return run


def _judged(run: Run) -> bool:
    """Return whether the rollout goes on at the judged length."""
    return run.last.finish is Finish.BOUNDARY


def _right(judged: Sequence[Run]) -> list[float] | None:
    """Return the head's score of each; None while the head is cold."""
    scores = [run.last.signals.head_T for run in judged]
    return (
        [float(head_T[-1]) for head_T in scores] if all(len(head_T) for head_T in scores) else None
    )


def _begun(tree: Tree) -> list[Run]:
    """Return the rollouts of a grown tree up to their judgement."""
    view = GrowthView(tree, 0, 0)
    places = [Branch(s.parent, s.fork, s.ordinal) for s in tree.children.get(view.root.id, ())]
    return [run for run in (run_at(view, branch) for branch in places) if run is not None]
