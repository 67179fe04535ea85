"""Batches that end two learners are set aside, and the run goes on with the next (ADR 051)."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.segment import Kind, Segment
from banyan.v1 import tree_pb2
from banyan.wire.segments import segment_to_wire
from services.learner import batch_attempt
from services.learner.data import prepare
from tests.learner.in_memory_learner import MemoryStore, Rig, grown, recipe


def _poisoned(ordinal: int, policy: bytes, groups: Container[int] = (2,)) -> list[tree_pb2.Tree]:
    """Return trees; those of `groups` hold a token that no model has."""
    (tree,) = grown(ordinal, policy)
    if ordinal in groups:
        first, tokens = tree.segments[1], np.array([1, 2**30, 3])
        bad = Segment(
            first.tree_id, first.parent, 5, 0, Kind.POLICY, tokens, -np.ones(3), policy=policy
        )
        first.CopyFrom(segment_to_wire(bad))
        tree.leaves[0].segment = tree.scores[0].leaf.segment = bad.id
    return [tree]


async def test_a_batch_that_ends_two_learners_is_passed_over_by_the_third(
    tmp_path: Path, tiny_folder: Path
) -> None:
    store = MemoryStore(_poisoned)
    rig = Rig(tmp_path, tiny_folder, store, recipe(4))
    for _ in range(2):
        with pytest.raises(IndexError):
            await rig.run()
    assert store.failures == {1: ["IndexError: index out of range in self"] * 2}
    await rig.run()
    # Without a gap, and all groups are used once.
    assert [batch.ordinal for batch, _ in store.batches] == [0, 1, 2, 3]
    assert len({g for batch, _ in store.batches for g in batch.group_ids}) == 8
    last = [p for p in store.puts if p.policy.learner_epoch == 3]
    assert [p.policy.step for p in last][-3:] == [2, 3, 4]
    aside = next(p for p in last if p.policy.step == 2)
    assert (aside.metrics["applied"], aside.batch_ordinal) == (0.0, 1)
    before = next(p.published for p in store.stored if p.published.policy.step == 1)
    assert aside.policy.digest == before.policy.digest != last[-1].policy.digest


async def test_a_run_of_which_every_batch_ends_its_learner_ends(
    tmp_path: Path, tiny_folder: Path
) -> None:
    """The fault is not the batches': later ones would be wasted, too."""
    store = MemoryStore(lambda ordinal, policy: _poisoned(ordinal, policy, range(2, 100)))
    rig = Rig(tmp_path, tiny_folder, store, recipe(9))
    for _ in range(2 * batch_attempt.IN_A_ROW):
        with pytest.raises(IndexError):
            await rig.run()
    assert store.failures.keys() == {1, 2, 3}
    for _ in range(2):
        with pytest.raises(
            InvalidInput, match=r"batches 1 to 3 were set aside one after another.*IndexError"
        ):
            await rig.run()
    assert len(store.batches) == 4


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (IndexError("x"), True),
        (RuntimeError("device-side assert"), True),
        (MemoryError(), True),
        (InvalidInput("segment claims another id"), True),
        (Refused("stop", "STALE_EPOCH"), False),
        (TemporaryError("away"), False),
        (ConnectionAbortedError("killed"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_only_errors_of_computing_are_the_batchs(error: BaseException, counts: bool) -> None:
    assert batch_attempt.of_the_batch(error) is counts


async def test_a_batch_that_cannot_be_prepared_is_committed_for_its_failure(
    tmp_path: Path, tiny_folder: Path, monkeypatch: Any
) -> None:
    plain, store = prepare.build_lesson, MemoryStore(lambda o, p: grown(o, p))

    def fails(groups: Any, *arguments: Any, **more: Any) -> Any:
        if any(name.endswith("/train/2") for name, _ in groups):
            raise ZeroDivisionError("of this group \ud800")
        return plain(groups, *arguments, **more)

    monkeypatch.setattr(prepare, "build_lesson", fails)
    rig = Rig(tmp_path, tiny_folder, store, recipe(3))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await rig.run()
    cause = {batch_attempt.UNSTUDIED: "ZeroDivisionError: of this group \ufffd"}
    assert len(store.batches) == 2 and store.batches[1][0].summary == cause
    await rig.run()
    assert [batch.ordinal for batch, _ in store.batches] == [0, 1, 2]
    assert store.puts[-1].policy.step == 3
    assert store.failures.keys() == {1}
