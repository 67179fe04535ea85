"""A driver over a store in memory opens the same trees after a crash or a lost message."""

import pytest

from banyan.errors import DeadlineMissed, Refused
from banyan.v1 import tree_pb2
from tests.gateway.driven_runs import driver_of as _driver
from tests.gateway.driven_runs import until_over as _until_over

TRAIN = tree_pb2.TREE_PURPOSE_TRAIN


async def test_another_gateway_goes_on_with_the_same_trees(store, bus, recipe_of) -> None:
    recipe = recipe_of(generate={"trees": 2})
    passes = 0
    while not await (await _driver(store, bus, recipe)).reconcile():  # a new process for every pass
        if not store.policies:
            store.publish(0)
        store.finish()
        store.train(4)
        passes += 1
        assert passes < 100, store.moves
    trained = [t for t in store.trees.values() if t.purpose == TRAIN]
    assert sorted((t.group_ordinal, t.index) for t in trained) == [
        (o, i) for o in range(12) for i in range(2)
    ]


async def test_a_group_that_was_opened_by_half_is_completed_by_the_next_gateway(
    store, bus, recipe_of
) -> None:
    recipe = recipe_of(generate={"trees": 2}, eval={"max_rows": 1}, task={"holdout": 0.0})
    store.publish(0)
    first = await _driver(store, bus, recipe)
    await first.reconcile()
    bus.hold = True
    await first.reconcile()
    for opened in bus.kept[:5]:  # the broker got five of eight; then the gateway was killed
        store.ingest(opened)
    bus.hold = False
    second = await _driver(store, bus, recipe)
    await second.reconcile()
    await second.reconcile()  # the half group held a place until it was whole
    assert store._groups().opened == 4 and len(store.trees) == 8


async def test_what_is_opened_together_is_one_message(store, bus, recipe_of) -> None:
    recipe = recipe_of(generate={"trees": 2}, task={"holdout": 0.0})
    store.publish(0)
    driver = await _driver(store, bus, recipe)
    await driver.reconcile()
    await driver.reconcile()
    assert store._groups().opened == 4 and len(store.trees) == 8
    assert bus.messages == 1 and len(bus.sent) == 8


async def test_large_trees_are_split_below_the_limit_of_a_message(
    store, bus, recipe_of, monkeypatch
) -> None:
    monkeypatch.setattr("services.chassis.messaging.chunks.MAX_MESSAGE_BYTES", 2000)
    recipe = recipe_of(generate={"trees": 2}, task={"holdout": 0.0})
    store.publish(0)
    driver = await _driver(store, bus, recipe)
    await driver.reconcile()
    await driver.reconcile()
    assert store._groups().opened == 4 and len(store.trees) == len(bus.sent) == 8
    assert 1 < bus.messages < 8


async def test_a_publish_that_breaks_off_is_completed_by_the_same_gateway(
    store, bus, recipe_of, monkeypatch
) -> None:
    monkeypatch.setattr("services.chassis.messaging.subjects.MOST_TREES", 1)
    recipe = recipe_of(generate={"trees": 2}, task={"holdout": 0.0})
    store.publish(0)
    driver = await _driver(store, bus, recipe)
    await driver.reconcile()
    publish, sent = bus.publish, []

    async def breaks(*args, **more):
        sent.append(args)
        if len(sent) == 4:
            raise DeadlineMissed("no ack from NATS")
        return await publish(*args, **more)

    monkeypatch.setattr(bus, "publish", breaks)
    with pytest.raises(DeadlineMissed):
        await driver.reconcile()
    assert store._groups().opened == 1
    await driver.reconcile()
    await driver.reconcile()
    assert store._groups().opened == 4 and len(store.trees) == 8


async def test_lost_messages_are_sent_again_after_a_while(
    store, bus, recipe_of, monkeypatch
) -> None:
    recipe = recipe_of(task={"holdout": 0.0})
    store.publish(0)
    driver = await _driver(store, bus, recipe)
    bus.lose = True
    await driver.reconcile()
    await driver.reconcile()
    await driver.reconcile()
    assert len(bus.sent) == 4 and not store.trees
    bus.lose = False
    monkeypatch.setattr("services.gateway.runs.tree_publisher.REOPEN_S", 0.0)
    await driver.reconcile()
    assert store._groups().opened == 4
    assert {s.spec.tree_id for s in bus.sent[:4]} == {s.spec.tree_id for s in bus.sent[4:]}


async def test_a_deterministic_wave_is_completed_whole_after_a_crash(store, bus, recipe_of) -> None:
    recipe = recipe_of(deterministic=True, task={"holdout": 0.0})
    store.publish(0)
    first = await _driver(store, bus, recipe)
    await first.reconcile()
    bus.hold = True
    await first.reconcile()
    for opened in bus.kept[:2]:
        store.ingest(opened)
    bus.hold = False
    await (await _driver(store, bus, recipe)).reconcile()
    assert len(store.trees) == 4
    assert len({t.wave for t in store.trees.values()}) == 1
    assert {t.wave_size for t in store.trees.values()} == {4}


async def test_a_deterministic_run_has_the_same_ids_twice(recipe_of, fresh) -> None:
    ids = []
    for _ in range(2):
        store, bus = fresh()
        recipe = recipe_of(deterministic=True)
        await _until_over(store, bus, recipe, await _driver(store, bus, recipe))
        ids.append(list(store.trees))
    assert ids[0] == ids[1]


async def test_a_newer_gateway_stops_this_one(store, bus, recipe_of) -> None:
    driver = await _driver(store, bus, recipe_of())
    store.refuse_epoch = True
    with pytest.raises(Refused, match="newer gateway"):
        await driver.run()
