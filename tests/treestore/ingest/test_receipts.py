"""Answers of environments at ingest: only a verifier's receipt makes one a fact."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.receipts import Receipt
from banyan.segment import Finish, Kind, Origin, Segment
from services.treestore.queries.trees import read
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from tests.banyan.environments.test_observation import SEEN
from tests.treestore.forge import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store whose key is that of an empty secret."""
    return World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()


@pytest.fixture
def action(world: World) -> Segment:
    """An action of a claimed tree."""
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    world.claim(spec.tree_id)
    root = world.forge.root(spec)
    act = world.forge.child(root, finish=Finish.TOOL_CALL)
    world.ingest(world.forge.segments(root, act))
    return act


def answer(world: World, action: Segment, text: str = "408", **more: Any) -> Segment:
    """Return the TOOL segment of an answer, with its receipt."""
    seen = replace(SEEN, action=action.id, shown=blake(text.encode()))
    mac = receipts.mac(world.settings.receipt_key, world.forge.run_id, action.tree_id, seen)
    nothing: dict[str, Any] = {"logprobs_T": [], "policy": b"", "finish": Finish.BOUNDARY}
    fields: dict[str, Any] = {"kind": Kind.TOOL, "receipt": Receipt(seen, mac), "text": text}
    return world.forge.child(action, **{**nothing, **fields, **more})


def refused(world: World) -> list[str]:
    return [row.reason for row in world.rows(schema.refused)]


def test_an_answer_with_its_receipt_becomes_a_fact_and_the_path_goes_on(
    world: World, action: Segment
) -> None:
    tool = answer(world, action)
    after = world.forge.child(tool, finish=Finish.STOP)
    world.ingest(world.forge.segments(tool, after))
    assert not refused(world)
    stored = {row.id: row for row in world.rows(schema.segments)}
    assert stored[tool.id].prefix_sampled == len(action)
    assert stored[after.id].prefix_sampled == len(action), "an answer's tokens are no one's answer"
    (tree,) = world.database.query(lambda c: read(c, [tool.tree_id]))
    (found,) = [s for s in tree.segments if s.id == tool.id]
    assert found.receipt.mac == tool.receipt.mac  # type: ignore[union-attr]


def test_of_two_answers_the_first_is_a_fact(world: World, action: Segment) -> None:
    first, second = answer(world, action), answer(world, action, text="409")
    world.ingest(world.forge.segments(first))
    world.ingest(world.forge.segments(second), world.forge.segments(first))
    assert refused(world) == ["ORDINAL_TAKEN"]


def without_receipt(world: World, action: Segment) -> Segment:
    return answer(world, action, receipt=None)


def another_text(world: World, action: Segment) -> Segment:
    return answer(world, action, receipt=answer(world, action).receipt, text="1e9")


def another_mac(world: World, action: Segment) -> Segment:
    receipt = answer(world, action).receipt
    assert receipt is not None
    return answer(world, action, receipt=Receipt(receipt.observation, b"x" * 32))


def more_reward(world: World, action: Segment) -> Segment:
    receipt = answer(world, action).receipt
    assert receipt is not None
    observation = replace(receipt.observation, reward=1.0)
    return answer(world, action, receipt=Receipt(observation, receipt.mac))


def of_another_action(world: World, action: Segment) -> Segment:
    other = world.forge.child(world.forge.root(world.forge.spec()), 1, finish=Finish.TOOL_CALL)
    return answer(world, action, receipt=answer(world, other).receipt)


def of_another_key(world: World, action: Segment) -> Segment:
    receipt = answer(world, action).receipt
    assert receipt is not None
    seen = receipt.observation
    mac = receipts.mac(receipts.key_of("theirs"), world.forge.run_id, action.tree_id, seen)
    return answer(world, action, receipt=Receipt(seen, mac))


@pytest.mark.parametrize(
    "forged",
    [without_receipt, another_text, another_mac, more_reward, of_another_action, of_another_key],
    ids=lambda forged: forged.__name__,
)
def test_a_forged_foreign_or_missing_receipt_is_refused_and_the_true_one_still_counts(
    world: World, action: Segment, forged: Any
) -> None:
    world.ingest(world.forge.segments(forged(world, action)))
    assert refused(world) == ["RECEIPT_FALSE"]
    tool = answer(world, action)
    world.ingest(world.forge.segments(tool))
    assert tool.id in {row.id for row in world.rows(schema.segments)}


def test_a_receipt_of_another_run_is_refused(world: World, action: Segment) -> None:
    seen = replace(SEEN, action=action.id, shown=blake(b"408"))
    mac = receipts.mac(world.settings.receipt_key, "other-run", action.tree_id, seen)
    world.ingest(world.forge.segments(answer(world, action, receipt=Receipt(seen, mac))))
    assert refused(world) == ["RECEIPT_FALSE"]


def test_only_the_environment_answers_an_action(world: World, action: Segment) -> None:
    world.ingest(world.forge.segments(world.forge.child(action)))
    forced = world.forge.child(action, 1, kind=Kind.FORCED, origin=Origin.BRANCH)
    world.ingest(world.forge.segments(forced))
    assert refused(world) == ["ANSWER_NOT_THEIRS"] * 2
    world.ingest(world.forge.segments(world.forge.child(action, fork=2)))
    assert len(refused(world)) == 2, "a fork inside an action answers nothing"


def test_an_answer_stands_at_the_end_of_an_action_with_ordinal_0(
    world: World, action: Segment
) -> None:
    spoken = world.forge.child(
        world.forge.root(world.forge.spec()), 2, finish=Finish.STOP, tokens_T=np.arange(4)
    )
    world.ingest(world.forge.segments(spoken))
    for misplaced in (
        answer(world, action, fork=2),
        answer(world, action, ordinal=1),
        answer(world, spoken),
    ):
        world.ingest(world.forge.segments(misplaced))
    assert refused(world) == ["ANSWER_MISPLACED"] * 3


@pytest.mark.parametrize("finish", [Finish.TOOL_CALL, Finish.ABORTED, Finish.PRUNED, Finish.STOP])
def test_an_answer_ends_as_answers_do(world: World, action: Segment, finish: Finish) -> None:
    """One that ended like an action could have an answer of its own."""
    world.ingest(world.forge.segments(answer(world, action, finish=finish)))
    assert refused(world) == ["ANSWER_END_FALSE"]
