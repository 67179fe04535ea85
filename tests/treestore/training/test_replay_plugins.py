"""Replay plugins: the draws of `dots`, and plugins that fail."""

from collections.abc import Sequence

import pytest

from banyan.draws import Draws
from banyan.errors import InvalidInput, NotFound
from banyan.plugins import StoredGroup
from banyan.v1 import treestore_service_pb2 as ts
from methods.replay.dots import Dots
from methods.replay.recent import Recent
from tests.treestore.forge import World
from tests.treestore.training.test_replay import _commit, _grown, _sample


def test_a_policy_that_draws_nonsense_is_refused_by_name(world: World) -> None:
    spec = _grown(world, 0, [0, 1])
    _commit(world, 0, [spec.group_id])
    with pytest.raises(InvalidInput, match="no replay plugin 'nobody'"):
        _sample(world, count=1, policy="nobody")
    with pytest.raises(InvalidInput, match="JSON object"):
        _sample(world, count=1, settings_json="[]")
    with pytest.raises(InvalidInput, match="not in the buffer"):
        _sample(world, count=1, policy=f"{__name__}:Stranger")
    with pytest.raises(NotFound):
        _sample(world, run_id="nobody")


class Stranger:
    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        return ["elsewhere"]


def _group(ordinal: int, *rewards: float) -> StoredGroup:
    return StoredGroup(f"g{ordinal}", ordinal, bytes([ordinal]) * 32, ordinal, rewards)


def test_dots_draws_from_groups_that_teach() -> None:
    groups = [
        _group(0, 0, 0),
        _group(1, 1, 1),
        _group(2, 0, 1),
        _group(3, 0, 0, 0, 1),
        _group(4, 1),
        _group(5),
    ]
    assert set(Dots().sample(groups, 9, Draws(1))) == {"g2", "g3"}
    assert Dots(nearest=1).sample(groups, 9, Draws(1)) == ["g2"]
    assert set(Recent().sample(groups, 9, Draws(1))) == {g.group_id for g in groups}
    with pytest.raises(ValueError, match="nearest"):
        Dots(nearest=-1)


def test_draws_are_uniform_and_a_groups_number_does_not_hang_on_the_others() -> None:
    groups = [_group(n, 0, 1) for n in range(10)]
    counts = {g.group_id: 0 for g in groups}
    for seed in range(600):
        for group_id in Recent().sample(groups, 3, Draws(seed)):
            counts[group_id] += 1
    assert all(130 < count < 230 for count in counts.values())  # 180 ± 11
    order = list(Recent().sample(groups, 10, Draws(5)))
    assert list(Recent().sample(groups[1:], 10, Draws(5))) == [g for g in order if g != "g0"]


def test_a_leaf_is_replayed_once_in_a_batch(world: World) -> None:
    old, newest = _grown(world, 0, [1, 0]), _grown(world, 1, [0, 1], row=0)
    for number, spec in enumerate((old, newest)):
        _commit(world, number, [spec.group_id])
    ask = [ts.FailedGroup(group_id=f"g{n}", row_digest=old.row_digest) for n in range(3)]
    assert [(tree.tree_id, tree.group_id) for tree in _sample(world, failed=ask)] == [
        (newest.tree_id, "g0"),
        (old.tree_id, "g1"),
    ]
    drawn = _sample(world, count=1, failed=ask[:1])  # the buffer has the newest group of the row
    assert [(tree.tree_id, tree.HasField("leaf")) for tree in drawn] == [
        (newest.tree_id, False),
        (old.tree_id, True),
    ]


class Breaks:
    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        return [groups[count].group_id]


class Unhashable:
    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> object:
        return [groups]


def test_a_plugin_that_raises_is_named_and_none_is_asked_about_nothing(world: World) -> None:
    assert _sample(world, count=1, policy=f"{__name__}:Breaks") == []  # nothing is stored yet
    _commit(world, 0, [_grown(world, 0, [0, 1]).group_id])
    with pytest.raises(
        InvalidInput, match=r"plugin '.*:Breaks' raised IndexError: list index out of range"
    ):
        _sample(world, count=1, policy=f"{__name__}:Breaks")
    with pytest.raises(InvalidInput, match="not in the buffer"):
        _sample(world, count=1, policy=f"{__name__}:Unhashable")
