"""What a batch trains on again: which groups failed, what is asked of the store, how what it gives joins the batch. Pure.

A group replayed whole is one more group of the batch. A success that joins a group of which every leaf failed takes the
place of its oldest leaf, so that the group has as many leaves as before and teaches: eight zeros become (1, 0 × 7)
(DART-GUI, arXiv 2509.23866). Leaves that are too old have left the group by then: they neither fail nor give a place up.
The success's tokens are another policy's, so its importance weights must be truncated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from banyan.recipe import Replay
from banyan.segment import Kind
from banyan.tree import Leaf, Tree
from services.learner.data.credit import ScoredTree, Stale

Groups = Sequence[tuple[str, Sequence[ScoredTree]]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A tree of an earlier batch. group_id: of the batch, that it is compared in. leaf: the only one that takes part."""

    tree_id: bytes
    group_id: str
    leaf: Leaf | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the store for a batch. failed: groups of which every leaf failed, with the digests of their rows."""

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
    """No leaf is too old."""
    return False


def wanted(
    replay: Replay,
    seed: int,
    batch: int,
    fresh: Groups,
    rows: Mapping[str, bytes],
    stale: Stale = none_stale,
) -> Wanted:
    """What a batch of these fresh groups is to replay. rows: digest of each group's row. stale: leaves that take no part."""
    hopeless = [
        group_id
        for group_id, trees in fresh
        if replay.rescue and failed(trees, replay.right, stale)
    ]
    failing = [(group_id, rows[group_id]) for group_id in hopeless]
    share = replay.fraction / (1.0 - replay.fraction)
    groups = max(1, round(len(fresh) * share)) if replay.fraction else 0
    return Wanted(replay, seed, batch, groups, tuple(failing))


def failed(trees: Sequence[ScoredTree], right: float, stale: Stale = none_stale) -> bool:
    """Whether a group has scored leaves that are not too old, and none of them is right."""
    scored = [value for _, _, value in _scored(trees, stale)]
    return bool(scored) and max(scored) < right


def _scored(trees: Sequence[ScoredTree], stale: Stale) -> list[tuple[int, Leaf, float]]:
    """The leaves that take part: the index of the tree, the leaf, its reward."""
    known = [
        (at, leaf, tree.rewards.get(leaf)) for at, tree in enumerate(trees) for leaf in tree.leaves
    ]
    return [
        (at, leaf, value)
        for at, leaf, value in known
        if value is not None and not stale(trees[at].tree, leaf)
    ]


def joined(
    fresh: Groups,
    replayed: Sequence[Replayed],
    trees: Mapping[bytes, ScoredTree],
    stale: Stale = none_stale,
) -> list[tuple[str, list[ScoredTree]]]:
    """The groups of the batch: the fresh ones with the successes that joined them, then those that are replayed whole."""
    groups = {group_id: list(members) for group_id, members in fresh}
    for one in replayed:
        tree = replace(trees[one.tree_id], replayed=True)
        if one.leaf is None:
            groups.setdefault(one.group_id, []).append(tree)
        else:
            groups[one.group_id] = rescued(
                groups[one.group_id], replace(tree, leaves=[one.leaf]), stale
            )
    return list(groups.items())


def rescued(
    trees: Sequence[ScoredTree], success: ScoredTree, stale: Stale = none_stale
) -> list[ScoredTree]:
    """Return the group with the success in the place of its oldest scored leaf that takes part, the first of several."""
    places = [(at, leaf) for at, leaf, _ in _scored(trees, stale)]
    oldest, gone = min(places, key=lambda place: _sampled_at(trees[place[0]].tree, place[1]))
    left = replace(trees[oldest], leaves=[leaf for leaf in trees[oldest].leaves if leaf != gone])
    kept = [*trees[:oldest], *([left] if left.leaves else []), *trees[oldest + 1 :]]
    return [*kept, success]


def _sampled_at(tree: Tree, leaf: Leaf) -> tuple[int, int]:
    """Return epoch and step of the oldest weights that sampled a path; the least of all where none did."""
    sampled = [s for s, end in tree.pieces(leaf.segment, leaf.end) if end and s.kind is Kind.POLICY]
    return min(((s.policy_epoch, s.policy_step) for s in sampled), default=(0, 0))
