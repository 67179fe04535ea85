"""What a batch trains on again: which groups failed, what is asked of the store, how what it gives joins the batch. Pure.

A group replayed whole is one more group of the batch. A success that joins a group of which every leaf failed takes the
place of its first leaf, so that a group has as many leaves as before (cards 38 and 47).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from banyan.recipe import Replay
from banyan.tree import Leaf
from services.learner.credit import ScoredTree

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


def wanted(replay: Replay, seed: int, batch: int, fresh: Groups, rows: Mapping[str, bytes]) -> Wanted:
    """What a batch of these fresh groups is to replay. rows: digest of each group's row."""
    failing = [(group_id, rows[group_id]) for group_id, trees in fresh if replay.rescue and failed(trees, replay.right)]
    share = replay.fraction / (1.0 - replay.fraction)
    groups = max(1, round(len(fresh) * share)) if replay.fraction else 0
    return Wanted(replay, seed, batch, groups, tuple(failing))


def failed(trees: Sequence[ScoredTree], right: float) -> bool:
    """Whether a group has scored leaves and none of them is right."""
    rewards = [tree.rewards.get(leaf) for tree in trees for leaf in tree.leaves]
    scored = [reward for reward in rewards if reward is not None]
    return bool(scored) and max(scored) < right


def joined(
    fresh: Groups, replayed: Sequence[Replayed], trees: Mapping[bytes, ScoredTree]
) -> list[tuple[str, list[ScoredTree]]]:
    """The groups of the batch: the fresh ones with the successes that joined them, then those that are replayed whole."""
    groups = {group_id: list(members) for group_id, members in fresh}
    for one in replayed:
        tree = replace(trees[one.tree_id], replayed=True)
        if one.leaf is None:
            groups.setdefault(one.group_id, []).append(tree)
        else:
            groups[one.group_id] = _rescued(groups[one.group_id], replace(tree, leaves=[one.leaf]))
    return list(groups.items())


def _rescued(trees: Sequence[ScoredTree], success: ScoredTree) -> list[ScoredTree]:
    """The group with the success in the place of its first scored leaf."""
    places = [(at, leaf) for at, tree in enumerate(trees) for leaf in tree.leaves if tree.rewards.get(leaf) is not None]
    first, gone = places[0]
    left = replace(trees[first], leaves=[leaf for leaf in trees[first].leaves if leaf != gone])
    kept = [*trees[:first], *([left] if left.leaves else []), *trees[first + 1 :]]
    return [*kept, success]
