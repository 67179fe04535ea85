"""Replay: the failed groups of a batch, the request to the store, and how its trees join the batch.

A group that is replayed whole is one more group of the batch. A success that joins a group of
failures takes the place of the group's oldest leaf, so that the group has as many leaves as before
and teaches: eight zeros become (1, 0 × 7) (DART-GUI, arXiv 2509.23866). Leaves that are too old
have left the group by then: they neither fail nor give up a place. The tokens of the success are
another policy's, so its importance weights must be truncated. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from banyan.credit.estimate import ScoredTree, Stale
from banyan.recipe import Replay
from banyan.segment import Kind
from banyan.tree import Leaf, Tree

Groups = Sequence[tuple[str, Sequence[ScoredTree]]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A tree of an earlier batch.

    group_id: group of this batch in which it is compared.
    leaf: the only leaf that takes part; None for all.
    """

    tree_id: bytes
    group_id: str
    leaf: Leaf | None = None


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request to the store for trees to train on again.

    replay: settings of the recipe.
    seed: seed of the run.
    batch: ordinal of the batch.
    groups: number of whole groups.
    failed: groups without a success, with the digests of their rows.
    """

    replay: Replay
    seed: int
    batch: int
    groups: int
    failed: tuple[tuple[str, bytes], ...] = ()

    @property
    def first_batch(self) -> int:
        """The oldest batch that counts."""
        return max(0, self.batch - self.replay.max_age) if self.replay.max_age else 0


def none_stale(_tree: Tree, _leaf: Leaf) -> bool:
    """Treat no leaf as too old."""
    return False


def request(
    replay: Replay,
    *,
    seed: int,
    batch: int,
    fresh: Groups,
    row_digests: Mapping[str, bytes],
    stale: Stale = none_stale,
) -> ReplayRequest:
    """Return the request of a batch of these fresh groups.

    row_digests: digest of each group's row.
    stale: tells which leaves take no part.
    """
    failures: list[tuple[str, bytes]] = []
    if replay.rescue:
        failures = [
            (group_id, row_digests[group_id])
            for group_id, trees in fresh
            if failed(trees, replay.right, stale)
        ]
    share = replay.fraction / (1.0 - replay.fraction)
    groups = max(1, round(len(fresh) * share)) if replay.fraction else 0
    return ReplayRequest(replay, seed=seed, batch=batch, groups=groups, failed=tuple(failures))


def failed(trees: Sequence[ScoredTree], right: float, stale: Stale = none_stale) -> bool:
    """Tell whether a group has scored leaves that are not too old, none of at least `right`."""
    scored = [value for _, _, value in _scored(trees, stale)]
    return bool(scored) and max(scored) < right


def _scored(trees: Sequence[ScoredTree], stale: Stale) -> list[tuple[int, Leaf, float]]:
    """Return the leaves that take part: index of the tree, leaf, reward."""
    rewards = [
        (index, leaf, tree.rewards.get(leaf))
        for index, tree in enumerate(trees)
        for leaf in tree.leaves
    ]
    return [
        (index, leaf, value)
        for index, leaf, value in rewards
        if value is not None and not stale(trees[index].tree, leaf)
    ]


def joined(
    fresh: Groups,
    replayed: Sequence[Replayed],
    trees: Mapping[bytes, ScoredTree],
    stale: Stale = none_stale,
) -> list[tuple[str, list[ScoredTree]]]:
    """Return the groups of the batch: fresh ones with their successes, then those replayed whole.

    trees: the replayed trees by id.
    """
    groups = {group_id: list(members) for group_id, members in fresh}
    for entry in replayed:
        tree = replace(trees[entry.tree_id], replayed=True)
        if entry.leaf is None:
            groups.setdefault(entry.group_id, []).append(tree)
        else:
            success = replace(tree, leaves=[entry.leaf])
            groups[entry.group_id] = rescued(groups[entry.group_id], success, stale)
    return list(groups.items())


def rescued(
    trees: Sequence[ScoredTree], success: ScoredTree, stale: Stale = none_stale
) -> list[ScoredTree]:
    """Return the group with the success in place of its oldest scored leaf that takes part.

    The first such leaf, if several are equally old.
    """
    places = [(index, leaf) for index, leaf, _ in _scored(trees, stale)]
    at, oldest = min(places, key=lambda place: _sampled_at(trees[place[0]].tree, place[1]))
    left = replace(trees[at], leaves=[leaf for leaf in trees[at].leaves if leaf != oldest])
    kept = [*trees[:at], *([left] if left.leaves else []), *trees[at + 1 :]]
    return [*kept, success]


def _sampled_at(tree: Tree, leaf: Leaf) -> tuple[int, int]:
    """Return epoch and step of the oldest weights that sampled a path; (0, 0) without any."""
    sampled = [s for s, end in tree.pieces(leaf.segment, leaf.end) if end and s.kind is Kind.POLICY]
    return min(((s.policy_epoch, s.policy_step) for s in sampled), default=(0, 0))
