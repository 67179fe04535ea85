"""Typed objects of made messages: what is counted, what is over, and what was set aside."""

from typing import Any

import banyan
from banyan.stored.evaluation import Evaluation
from banyan.stored.lineage import Lineage
from banyan.stored.run import Run
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from tests.door.stub import Stub, served


def test_an_evaluation_counts_answers_apart_from_rows() -> None:
    message = rs.EvalProgress(
        label="step-2-greedy", groups=9, done=8, scored=6, unscorable=2, correct=3, reward_sum=4.5
    )
    found = Evaluation.of(message, 4)
    assert (found.rows, found.done, found.answers, found.unscorable) == (9, 8, 6, 2)
    assert (
        found.step == 2
        and found.accuracy == 0.5
        and found.mean_reward == 0.75
        and found.interval is not None
    )
    none = Evaluation.of(rs.EvalProgress(label="before-greedy", groups=9), 4)
    assert (none.accuracy, none.interval, none.mean_reward) == (None, None, None)


def test_a_batch_that_was_set_aside_says_why_and_made_no_policy() -> None:
    batches = [
        ts.Consumer(batch=ts.Batch(ordinal=3, use="train", set_aside="its loss is not finite")),
        ts.Consumer(batch=ts.Batch(ordinal=4), policy=tree_pb2.PolicyRef(step=5, digest=b"d" * 32)),
    ]
    aside, trained = Lineage.of(ts.GetAncestryResponse(), batches).batches
    assert aside.set_aside == "its loss is not finite" and aside.policy is None
    assert trained.set_aside is None and trained.policy is not None
    assert (trained.policy.step, trained.policy.digest) == (5, (b"d" * 32).hex())


def test_a_paused_run_is_not_over() -> None:
    nothing: Any = None
    over = {
        name: Run.of(rs.Run(state=state), nothing).over
        for name, state in rs.RunState.items()
        if state
    }
    ended = {name.removeprefix("RUN_STATE_") for name, is_over in over.items() if is_over}
    assert ended == {"SUCCEEDED", "FAILED", "CANCELLED"}


def test_a_live_system_is_read_with_hex_ids() -> None:
    tree_id = bytes(range(32))
    summary = ts.TreeSummary(tree_id=tree_id, number=1, run_id="r", row_digest=b"\xab" * 32)
    asked: list[ts.TreeFilter] = []

    def listed(request: ts.ListTreesRequest, context: Any) -> ts.ListTreesResponse:
        asked.append(request.filter)
        return ts.ListTreesResponse(trees=[summary])

    run = rs.ReadRunResponse(run=rs.Run(run_id="r", recipe_json="{}"))
    stub = Stub(ListTrees=listed, ReadRun=lambda *_: run)
    with served(stub) as address, banyan.open(address) as store:
        (tree,) = store.run("r").trees(label="before-greedy")
    assert tree.tree_id == tree_id.hex()
    assert [(f.run_id, f.purpose, f.label) for f in asked] == [
        ("r", tree_pb2.TREE_PURPOSE_EVAL, "before-greedy")
    ]
