"""A driver over a store in memory: a run from its start to its end."""

from types import SimpleNamespace

import grpc.aio
import pytest

from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.runstore_service_pb2 import PROCESS_EVENT_GIVEN_UP, ReportProcessRequest
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.clients.treestore import RpcStore
from services.gateway.runs import driver
from tests.gateway.driven_runs import driver_of as _driver
from tests.gateway.driven_runs import until_over as _until_over

EVAL, TRAIN = tree_pb2.TREE_PURPOSE_EVAL, tree_pb2.TREE_PURPOSE_TRAIN


async def test_a_run_goes_through_all_its_states(store, bus, recipe_of) -> None:
    recipe = recipe_of()
    driver = await _driver(store, bus, recipe)
    await _until_over(store, bus, recipe, driver)
    assert [m for m, _ in store.moves] == [
        "EVALUATING_BEFORE",
        "TRAINING",
        "EVALUATING_AFTER",
        "SUCCEEDED",
    ]
    assert store.desired[driver.run_id] == {}
    assert store.saved == [driver.run_id], (
        "the last checkpoint is on disk before the run is a success"
    )
    assert store.batches == recipe.budget.steps
    trained = [t for t in store.trees.values() if t.purpose == TRAIN]
    assert sorted(t.group_ordinal for t in trained) == list(range(12))
    labels = [t.label for t in store.trees.values() if t.purpose == EVAL]
    assert {label: labels.count(label) for label in labels} == dict.fromkeys(
        ("before-greedy", "before-sampled", "after-greedy", "after-sampled"), 3
    )


async def test_trees_say_which_policy_may_sample_them(store, bus, recipe_of) -> None:
    recipe = recipe_of(control={"max_staleness": 1}, eval={"samples": 0})
    await _until_over(store, bus, recipe, await _driver(store, bus, recipe))
    trained = sorted(
        (t for t in store.trees.values() if t.purpose == TRAIN), key=lambda t: t.group_ordinal
    )
    assert [t.min_step for t in trained] == [0] * 8 + [1] * 4
    assert not any(t.HasField("max_step") for t in trained)
    after = [t for t in store.trees.values() if t.label == "after-greedy"]
    assert {(t.min_step, t.max_step) for t in after} == {(3, 3)}


async def test_processes_are_wanted_while_the_run_works(store, bus, recipe_of) -> None:
    driver = await _driver(store, bus, recipe_of(resources={"rollout_nodes": 2}))
    assert not await driver.reconcile()
    assert store.desired[driver.run_id] == {"rollout": 2, "learner": 1}
    await store.move_run(driver.run_id, S.RUN_STATE_STARTING, S.RUN_STATE_PAUSED, "")
    assert await driver.reconcile()
    assert store.desired[driver.run_id] == {}


async def test_nothing_is_opened_before_the_base_policy_is_published(store, bus, recipe_of) -> None:
    driver = await _driver(store, bus, recipe_of())
    for _ in range(3):
        await driver.reconcile()
    assert not bus.sent and not store.moves


async def test_evaluations_during_the_run_hold_training_back(store, bus, recipe_of) -> None:
    recipe = recipe_of(eval={"every": 1, "samples": 0}, control={"max_staleness": 2})
    driver = await _driver(store, bus, recipe)
    views = []
    for _ in range(100):
        if await driver.reconcile():
            break
        if not store.policies:
            store.publish(0)
        open_evals = {
            t.label
            for t in store.trees.values()
            if t.purpose == EVAL and store.states[t.tree_id] == "open"
        }
        ahead = [t.group_ordinal // 4 for t in store.trees.values() if t.purpose == TRAIN]
        views.append((open_evals, store.policies[-1].published.policy.step, max(ahead, default=0)))
        store.finish()
        store.train(4)
    assert store.moves[-1][0] == "SUCCEEDED"
    for labels, step, batch in views:
        for label in labels & {"step-1-greedy", "step-2-greedy"}:
            assert step == int(label.split("-")[1]) and batch < step
    assert {t.label for t in store.trees.values() if t.label.startswith("step")} == {
        "step-1-greedy",
        "step-2-greedy",
    }


async def test_without_held_out_rows_the_run_says_that_it_was_not_measured(
    store, bus, recipe_of
) -> None:
    recipe = recipe_of(task={"holdout": 0.0})
    await _until_over(store, bus, recipe, await _driver(store, bus, recipe))
    assert [m for m, _ in store.moves] == ["TRAINING", "SUCCEEDED"]
    assert all("no evaluation" in cause for _, cause in store.moves)


async def test_reasons_are_those_of_closed_trees_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing trees are not read: they would hide those with reasons."""
    tree = lineage.GetTreeResponse()
    tree.tree.scores.add(scorer="gs:raises").score.reason = "it raised"

    async def call(method: str, request):
        if method == "GetTree":
            return tree
        over = {
            tree_pb2.TREE_STATE_CLOSED,
            tree_pb2.TREE_STATE_CONSUMED,
            tree_pb2.TREE_STATE_DROPPED,
        }
        assert set(request.filter.states) == over
        return lineage.ListTreesResponse(trees=[lineage.TreeSummary(tree_id=b"t")])

    async with grpc.aio.insecure_channel("localhost:1") as channel:
        store = RpcStore(channel)
        monkeypatch.setattr(store, "_call", call)
        monkeypatch.setattr(
            store, "_trees", SimpleNamespace(ListTrees="ListTrees", GetTree="GetTree")
        )
        assert await store.troubles("r", "") == ["gs:raises: it raised"]


async def test_a_process_that_was_given_up_fails_the_run_with_its_words(
    store, bus, recipe_of
) -> None:
    driver = await _driver(store, bus, recipe_of())
    store.given_up.append(
        ReportProcessRequest(
            service="learner",
            event=PROCESS_EVENT_GIVEN_UP,
            exit_status=-9,
            detail="a\nout of memory",
        )
    )
    await driver.reconcile()
    assert store.moves == [
        ("FAILED", "learner 0 ended too often, last with signal 9: out of memory")
    ]


async def test_no_time_for_a_single_step_fails_the_run(store, bus, recipe_of) -> None:
    driver = await _driver(store, bus, recipe_of(budget={"minutes": 1.5}))
    store.live_ms = 89_000
    await driver.reconcile()
    assert not store.moves
    store.live_ms = 90_000
    await driver.reconcile()
    assert (
        store.moves[0][0] == "FAILED"
        and "1.5 minutes" in store.moves[0][1]
        and "nothing was trained" in store.moves[0][1]
    )


async def test_when_the_time_is_over_what_was_begun_is_trained_on_and_measured(
    store, bus, recipe_of
) -> None:
    recipe = recipe_of(budget={"minutes": 1.5, "steps": 50})
    driver = await _driver(store, bus, recipe)
    for _ in range(100):
        over = await driver.reconcile()
        if over:
            break
        if not store.policies:
            store.publish(0)
        if len(store.policies) == 4 and not store.live_ms:
            store.live_ms = 90_000
            begun = len([t for t in store.trees.values() if t.purpose == TRAIN])
        store.finish()
        store.train(recipe.control.groups_per_batch)
    assert over and [move for move, _ in store.moves] == [
        "EVALUATING_BEFORE",
        "TRAINING",
        "EVALUATING_AFTER",
        "SUCCEEDED",
    ]
    done = len(store.policies) - 1
    assert 3 <= done < 50 and f"1.5 minutes are over at step {done} of 50" in store.moves[-1][1]
    assert len([t for t in store.trees.values() if t.purpose == TRAIN]) == begun
    after = {t.min_step for t in store.trees.values() if t.label.startswith("after-")}
    assert after == {done}


async def test_what_does_not_end_long_after_the_time_fails_the_run(store, bus, recipe_of) -> None:
    recipe = recipe_of(budget={"minutes": 1.5, "steps": 50})
    driver = await _driver(store, bus, recipe)
    while len(store.policies) < 3:
        await driver.reconcile()
        if not store.policies:
            store.publish(0)
        store.finish()
        store.train(recipe.control.groups_per_batch)
    await driver.reconcile()  # opens groups that are never grown
    store.live_ms = 90_000
    for _ in range(5):
        await driver.reconcile()
    assert store.moves[-1][0] == "TRAINING"
    store.live_ms = 90_000 + 10 * 60_000
    await driver.reconcile()
    assert store.moves[-1][0] == "FAILED" and "did not end in 10 more" in store.moves[-1][1]


async def test_rows_are_drawn_once_per_epoch(store, bus, recipe_of) -> None:
    recipe = recipe_of(budget={"steps": 60}, task={"holdout": 0.0})
    await _until_over(store, bus, recipe, await _driver(store, bus, recipe), passes=400)
    trained = sorted(
        (t for t in store.trees.values() if t.purpose == TRAIN), key=lambda t: t.group_ordinal
    )
    assert len({t.row_digest for t in trained[:145]}) == 145
    assert [t.row_digest for t in trained[145:240]] != [t.row_digest for t in trained[:95]]


@pytest.mark.parametrize(
    ("trouble", "more"),
    [
        ("number: INFRASTRUCTURE: 3 times: it ended", True),
        ("my:reward: ENVIRONMENT_FAULT", True),  # a joined node's, without its cause
        ("number: ENVIRONMENT_FAULT: environment maze: reset raised", False),
        ("number: EXCEPTION: ValueError: INFRASTRUCTURE: quoted", False),
        ("tree dropped: INFRASTRUCTURE", True),
    ],
)
def test_the_log_is_named_where_it_says_more(trouble: str, more: bool) -> None:
    assert driver._is_in_the_log(trouble) is more
