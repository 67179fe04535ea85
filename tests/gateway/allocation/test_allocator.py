"""Curricula that decide by facts: each decision is made once and stored before it is used."""

import json
import re
import time
from pathlib import Path

import pytest

from banyan.draws import Draws
from banyan.errors import InvalidInput, Refused
from banyan.plugins import KEPT_GROUPS, Allocation, GroupFacts, PromptStats, RowStats
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import tree_pb2
from services.gateway.allocation import allocator as allocator_module
from services.gateway.allocation.allocation import from_wire, parts, to_wire
from services.gateway.allocation.allocator import Allocator
from services.gateway.allocation.history import History
from services.gateway.runs.create import new_run
from services.gateway.runs.driver import Driver
from services.gateway.tasks import dataset

TRAIN = tree_pb2.TREE_PURPOSE_TRAIN
AGAIN = {"curriculum": "tests.gateway.curriculum_doubles:Again"}


@pytest.fixture
def adaptive(recipe_of):
    return recipe_of(control=AGAIN, task={"holdout": 0.0}, eval={"samples": 0})


async def _driver(store, bus, recipe) -> Driver:
    examples = await dataset.load(recipe, Path.cwd())
    run = new_run(recipe, examples, "/folder", Path("s")).run
    stored = await store.put_run(run, "request")
    return Driver(
        store, bus, store, run_id=stored.run_id, recipe=recipe, examples=examples, epoch=1
    )


def _trained(store) -> list[tuple[int, int, str, str]]:
    trees = sorted(
        (t for t in store.trees.values() if t.purpose == TRAIN),
        key=lambda t: (t.group_ordinal, t.index),
    )
    return [(t.group_ordinal, t.index, t.row_json, t.tree_id.hex()) for t in trees]


async def _to_the_end(store, bus, recipe, drivers) -> None:
    """Drive a run to its end; `drivers` has one for each pass."""
    for _ in range(60):
        driver = await anext(drivers)
        if await driver.reconcile():
            return
        if not store.policies:
            store.publish(0)
        store.finish()
        store.train(4)
    raise AssertionError(store.moves)


async def _always(driver: Driver):
    while True:
        yield driver


async def _another(store, bus, recipe):
    while True:
        yield await _driver(store, bus, recipe)


async def test_a_run_by_facts_is_the_same_with_one_gateway_and_with_one_for_each_pass(
    adaptive, fresh
) -> None:
    outcomes = []
    for another in (False, True):
        store, bus = fresh()
        rows = (await dataset.load(adaptive, Path.cwd())).train
        fails = {json.dumps(row, sort_keys=True, separators=(",", ":")) for row in rows[:6:2]}
        store.answers = {row: ([0.0, 0.0], [3, 4]) for row in fails}
        drivers = _always(await _driver(store, bus, adaptive))
        if another:
            drivers = _another(store, bus, adaptive)
        await _to_the_end(store, bus, adaptive, drivers)
        trees = [(o, i, row) for o, i, row, _ in _trained(store)]
        stored = [a.SerializeToString() for _, a in sorted(store.allocations.items())]
        outcomes.append((trees, stored))
    assert outcomes[0] == outcomes[1]
    groups = {o: row for o, _, row in outcomes[0][0]}
    assert sorted(groups) == list(range(12))
    assert [groups[4], groups[5]] == [groups[0], groups[2]], (
        "rows 0 and 2 failed in the first batch and come again"
    )
    assert [i for o, i, _ in outcomes[0][0] if o == 4] == [0, 1], "with two trees"


async def test_a_gateway_that_is_replaced_between_deciding_and_opening_changes_nothing(
    adaptive, store, bus
) -> None:
    store.publish(0)
    first = await _driver(store, bus, adaptive)
    await first.reconcile()
    bus.lose = True  # it decides, and is killed before the broker has a tree
    await first.reconcile()
    decided = {o: a.row for o, a in store.allocations.items()}
    lost = {s.spec.tree_id for s in bus.sent}
    assert len(decided) == 4 and len(lost) == 4 and not store.trees
    bus.lose = False
    control = adaptive.control.model_copy(update={"curriculum_settings": {"beyond": 7}})
    recipe = adaptive.model_copy(update={"control": control})  # it would decide otherwise
    second = await _driver(store, bus, recipe)
    await second.reconcile()
    assert set(store.trees) == lost
    assert {o: a.row for o, a in store.allocations.items()} == decided


async def test_two_gateways_at_once_open_the_same_trees(adaptive, store, bus) -> None:
    store.publish(0)
    first, second = await _driver(store, bus, adaptive), await _driver(store, bus, adaptive)
    await first.reconcile()
    reads, read = [], store.read_allocations

    async def nothing_yet(run_id: str, ordinal: int):
        reads.append(ordinal)
        return []

    store.read_allocations = nothing_yet  # the second reads before the first has written
    second._allocator._recipe.control.curriculum_settings["beyond"] = 3
    await second.reconcile()
    store.read_allocations = read
    await first.reconcile()
    assert reads and len(store.allocations) == 4
    assert (
        len({t.tree_id for t in store.trees.values()})
        == len({t.group_ordinal for t in store.trees.values()})
        == 4
    )


async def test_an_older_gateway_opens_nothing(adaptive, store, bus) -> None:
    store.publish(0)
    driver = await _driver(store, bus, adaptive)
    await driver.reconcile()
    store.refuse_epoch = True
    with pytest.raises(Refused):
        await driver.reconcile()
    assert not bus.sent


async def test_uniform_asks_the_store_for_nothing(recipe_of, store) -> None:
    recipe = recipe_of()
    rows = await dataset.load(recipe, Path.cwd())
    allocator = Allocator(None, "r", recipe, rows)  # type: ignore[arg-type]
    assert len(await allocator.fill(range(5), 0)) == 5


async def test_an_invalid_decision_is_named(recipe_of, store) -> None:
    recipe = recipe_of(control={**AGAIN, "curriculum_settings": {"beyond": 10_000}})
    allocator = Allocator(store, "r", recipe, await dataset.load(recipe, Path.cwd()))
    with pytest.raises(
        InvalidInput,
        match=r"curriculum_doubles:Again, group 0: there is no row 10000; there are \d+",
    ):
        await allocator.fill(range(2), 0)
    assert not store.allocations


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("raise", " raised ZeroDivisionError: "),
        ("exit", " raised SystemExit: 3"),
        ("nothing", " gave NoneType where a list of Allocation was asked for"),
        ("none", ", group 0: an Allocation is wanted, got NoneType"),
        ("row", ", group 0: row must be an int, got 'x' (str)"),
        ("bool", ", group 0: row must be an int, got True (bool)"),
        ("trees", ", group 0: trees must be an int, got 2.0 (float)"),
        ("settings", ", group 0: settings must be JSON"),
        ("content", ", group 0: role and content of a message are strings"),
        ("surrogate", ", group 0: a text is not Unicode"),
        ("long", ", group 0: messages of 5000004 bytes; a group has at most 4194304"),
    ],
)
@pytest.mark.parametrize("plugin", ["Rude", "RudeFixed"])
async def test_a_curriculum_that_breaks_its_word_is_named(
    recipe_of, store, way, message, plugin
) -> None:
    control = {
        "curriculum": f"tests.gateway.curriculum_doubles:{plugin}",
        "curriculum_settings": {"way": way},
    }
    recipe = recipe_of(control=control)
    allocator = Allocator(store, "r", recipe, await dataset.load(recipe, Path.cwd()))
    with pytest.raises(
        InvalidInput, match=re.escape(f"control.curriculum {control['curriculum']}{message}")
    ):
        await allocator.fill(range(2), 0)
    assert not store.allocations


@pytest.mark.parametrize("plugin", ["Rude", "RudeFixed"])
async def test_a_curriculum_that_hangs_is_given_up(recipe_of, store, monkeypatch, plugin) -> None:
    monkeypatch.setattr(allocator_module, "PATIENCE_S", 0.2)
    control = {
        "curriculum": f"tests.gateway.curriculum_doubles:{plugin}",
        "curriculum_settings": {"way": "hang"},
    }
    recipe = recipe_of(control=control)
    allocator = Allocator(store, "r", recipe, await dataset.load(recipe, Path.cwd()))
    began = time.monotonic()
    with pytest.raises(
        InvalidInput, match=f"curriculum_doubles:{plugin} gave no answer within 0.2 s"
    ):
        await allocator.fill(range(2), 0)
    assert time.monotonic() - began < 5.0


ROUNDS = {"generate": {"policy": "rounds"}}


async def test_what_rooms_count_on_is_not_changed(recipe_of, store) -> None:
    with pytest.raises(
        InvalidInput, match=r"dart with setting start changes what control\.rooms xrpo counts on"
    ):
        recipe_of(
            control={
                "rooms": "xrpo",
                "curriculum": "dart",
                "curriculum_settings": {"setting": "start"},
            },
            **ROUNDS,
        )
    own = {
        "curriculum": "tests.gateway.curriculum_doubles:Rude",
        "curriculum_settings": {"way": "start"},
    }
    recipe = recipe_of(control={"rooms": "xrpo", **own}, **ROUNDS)
    allocator = Allocator(store, "r", recipe, await dataset.load(recipe, Path.cwd()))
    with pytest.raises(
        InvalidInput, match=r"group 0: setting start changes what control\.rooms xrpo counts on"
    ):
        await allocator.fill(range(2), 0)


def test_allocations_are_stored_in_parts_that_a_message_holds() -> None:
    long = [
        to_wire(o, Allocation(o, messages=({"role": "user", "content": "ä" * 1_500_000},)), 0)
        for o in range(7)
    ]
    assert long[0].ByteSize() < 3_100_000, "no character is written as six"
    assert [[a.ordinal for a in part] for part in parts(long)] == [[0, 1], [2, 3], [4, 5], [6]]
    many = [runs.GroupAllocation(ordinal=o) for o in range(20_001)]
    assert [len(part) for part in parts(many)] == [10_000, 10_000, 1] and not list(parts([]))


def test_an_allocation_survives_the_wire() -> None:
    assert from_wire(runs.GroupAllocation(row=1, why="because")) == Allocation(1, why="because")
    whole = Allocation(3, 2, {"width": 4}, 9, ({"role": "user", "content": "x"},), "hard")
    assert from_wire(to_wire(5, whole, 7)) == whole and to_wire(5, whole, 7).batches == 7


def test_history_in_parts_is_the_same_as_at_once() -> None:
    history = History(right=1.0)
    for ordinal in range(6):
        history.record_allocation(ordinal, ordinal % 2)
    assert history.stats[0] == RowStats(opened=3, newest=4)
    for batch, ordinal in enumerate((0, 2, 1)):
        history.record_outcome(ordinal, batch, [1.0, 0.5, 1.0], [4, 99, 7 - ordinal])
    assert history.stats[0].groups == (
        GroupFacts(0, 0, 0, (1.0, 0.5, 1.0), (4, 99, 7)),
        GroupFacts(2, 0, 1, (1.0, 0.5, 1.0), (4, 99, 5)),
    )
    assert (
        history.stats[0].closed,
        history.stats[0].longest_success,
        history.stats[1].longest_success,
    ) == (2, 7, 6)
    for batch in range(3, 3 + KEPT_GROUPS):
        history.record_allocation(6 + batch, 0)
        history.record_outcome(6 + batch, batch, [0.0], [1])
    assert [g.batch for g in history.stats[0].groups] == list(range(3, 3 + KEPT_GROUPS)), (
        "the newest are kept"
    )
    assert history.stats[0].longest_success == 7, "a past success is not forgotten"
    assert PromptStats([], []).of(3) == RowStats() and Draws(1).seed == 1
