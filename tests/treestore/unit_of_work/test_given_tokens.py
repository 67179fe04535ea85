"""A path's length counts what environments gave, in whatever parts the path comes."""

from dataclasses import replace
from typing import Any

import pytest

from banyan.segment import Finish, Segment
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.treestore.control import runs
from services.treestore.storage import schema
from tests.treestore.forge import World
from tests.treestore.ingest.test_receipts import answer

_SPEC = GenerateSpec(name="iid", max_new_tokens=64)
_ACTS = replace(_SPEC, environment=EnvironmentSpec(name="calculator"))


@pytest.fixture
def bounded(make_world: Any) -> World:
    """Return a world whose run has a model of 100 tokens and paths of 30."""
    world: World = make_world()
    world.database.transact(runs.take_gateway_epoch)
    run = world.forge.run(vocabulary=100, longest_path=30)
    request = rs.PutRunRequest(run=run, request_id="first", gateway_epoch=1)
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    return world


def path(world: World, generate: GenerateSpec, turns: int) -> list[Segment]:
    """Return a path: 3 tokens of prompt, and 4 of an action and of an answer a turn."""
    spec = world.forge.spec(generate_json=generate.to_json())
    world.open(spec)
    made = [world.forge.root(spec)]
    for _ in range(turns):
        made.append(world.forge.child(made[-1], finish=Finish.TOOL_CALL))
        made.append(answer(world, made[-1]))
    return made


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
@pytest.mark.parametrize("given", [_ACTS, _SPEC], ids=["acts", "does not act"])
def test_answers_count_in_the_length_of_a_path(
    bounded: World, at_once: int, given: GenerateSpec
) -> None:
    """7, 11, 15, 19, 23, 27 tokens fit into 30; the segment after them does not."""
    bounded.settings = replace(bounded.settings, rebuild=True)  # no policy is published
    made = path(bounded, given, 4)
    for start in range(0, len(made), at_once):
        bounded.ingest(bounded.forge.segments(*made[start : start + at_once]))
    stored = len(bounded.rows(schema.segments))
    reasons = [row.reason for row in bounded.rows(schema.refused)]
    if given is _SPEC:  # without an environment no path has an answer, and none is summed up
        assert stored == len(made) and not reasons
    else:
        assert stored == 7 and reasons == ["PATH_TOO_LONG", "PARENT_REFUSED"]
