"""Lists of trees, runs and dead letters by pages, on both databases."""

from typing import Any

import pytest

from banyan.errors import NotFound
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import runs
from services.treestore.queries import trees
from tests.treestore.forge import Forge, World

TRAIN, EVAL = tree_pb2.TREE_PURPOSE_TRAIN, tree_pb2.TREE_PURPOSE_EVAL


def listed(world: World, **chosen: Any) -> list[ts.TreeSummary]:
    filters = ts.TreeFilter(run_id=world.forge.run_id, **chosen)
    return list(world.database.query(lambda c: trees.summaries(c, filters)).trees)


def ids(found: list[ts.TreeSummary]) -> list[bytes]:
    return [summary.tree_id for summary in found]


def test_pages_go_on_behind_the_last_number(world: World) -> None:
    specs = [world.forge.spec(number) for number in range(7)]
    world.ingest(world.forge.all_opened(specs))
    found, before = [], 0
    while page := listed(world, limit=3, before=before):
        found += page
        before = page[-1].number
    assert ids(found) == [spec.tree_id for spec in reversed(specs)]
    assert [s.opened_unix_ms for s in found] == [world.now()] * 7
    assert {s.closed_unix_ms for s in found} == {0}
    assert found[0].row_digest == specs[-1].row_digest


def test_filters_narrow_each_other(world: World) -> None:
    forge = world.forge
    specs = [forge.spec(0, index, size=2) for index in range(2)]
    specs += [forge.spec(1), forge.spec(0, label="before-greedy")]
    world.ingest(forge.all_opened(specs))
    epoch = world.claim(specs[0].tree_id)
    world.ingest(*forge.life(specs[0], epoch=epoch))
    assert ids(listed(world, purpose=EVAL)) == [specs[3].tree_id]
    assert ids(listed(world, purpose=TRAIN, row_digest=specs[0].row_digest)) == [
        specs[1].tree_id,
        specs[0].tree_id,
    ]
    group = listed(world, purpose=TRAIN, group_id=specs[0].group_id)
    assert [(s.tree_id, s.scores) for s in group] == [(specs[1].tree_id, 0), (specs[0].tree_id, 2)]
    assert ids(listed(world, policy_step=0, group_id=specs[2].group_id)) == [specs[2].tree_id]
    assert listed(world, policy_step=1) == []
    closed = [tree_pb2.TREE_STATE_CLOSED]
    assert ids(listed(world, states=closed, purpose=TRAIN)) == [specs[0].tree_id]
    assert [s.scores for s in listed(world, tree_ids=[specs[0].tree_id])] == [2]


def test_runs_of_one_moment_are_on_one_page_each(world: World) -> None:
    for number in range(5):
        if number == 3:
            world.now.ms += 10
        run = Forge(run_id=f"r-{number}").run()
        put = rs.PutRunRequest(run=run, request_id=run.run_id, gateway_epoch=1)
        world.database.transact(lambda c, p=put: runs.put(c, p, world.now(), world.settings))

    def page(**more: Any) -> rs.ReadRunsResponse:
        request = rs.ReadRunsRequest(**more)
        return world.database.query(lambda c: runs.read_all(c, request, world.now() + 5))

    whole = page()
    assert [run.run_id for run in whole.runs][:2] == ["r-3", "r-4"] and len(whole.runs) == 6
    assert list(whole.live_ms)[:3] == [5, 5, 15]
    found: list[str] = []
    last = rs.Run()
    while one := page(limit=1, after=last.run_id, after_unix_ms=last.created_unix_ms).runs:
        last = one[0]
        found.append(last.run_id)
    assert found == [run.run_id for run in whole.runs]


def test_a_tokenizer_is_the_runs_own_or_none(world: World) -> None:
    from tokenizers import Tokenizer, models

    data = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str().encode()
    run = Forge(run_id="told").run()
    put = rs.PutRunRequest(run=run, request_id="told", gateway_epoch=1, tokenizer=data)
    world.database.transact(lambda c: runs.put(c, put, world.now(), world.settings))
    assert world.database.query(lambda c: runs.tokenizer(c, "told")) == data
    assert world.database.query(lambda c: runs.tokenizer(c, world.forge.run_id)) == b""
    with pytest.raises(NotFound):
        world.database.query(lambda c: runs.tokenizer(c, "none"))
