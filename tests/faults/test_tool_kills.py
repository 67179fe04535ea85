"""A verifier and a node that are killed again and again while trees act: nothing is lost, doubled
or answered otherwise.
"""

import asyncio
import random
import time
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.supervisor.backoff import Backoff
from tests.faults import tool_load
from tests.faults.audit import audit
from tests.faults.harness import System, system
from tests.faults.oracle.allowed import KILLED

pytestmark = pytest.mark.faults

STEPS, KILLS, SEED = 6, 10, 19
SERVICES = ("verifier", "rollout")
# As many ends of a service in so short a time would else be given up.
AT_ONCE = Backoff(longest_s=0.2, limit=1000)


async def _reach(made: System, wanted: int) -> None:
    """Wait until the store has so many answers."""
    end = time.monotonic() + 60
    while (found := tool_load.answers(made.state / "store.sqlite")) < wanted:
        assert time.monotonic() < end, f"{found} answers of {wanted} after 60 s"
        await asyncio.sleep(0.01)


async def _kill_at_random(made: System) -> None:
    """Kill each service KILLS times, in random order, each a random number of answers later."""
    rng = random.Random(SEED)
    victims = list(SERVICES) * KILLS
    rng.shuffle(victims)
    for service in victims:
        now = tool_load.answers(made.state / "store.sqlite")
        await _reach(made, now + rng.randint(1, 6))
        await made.kill(service)


async def test_ten_kills_of_verifier_and_node_each(tmp_path: Path) -> None:
    environment = tool_load.TILL  # of a class with a state, so that lost ones are made again
    tmp_path.chmod(0o755)  # the class's children are of another user
    async with system(tmp_path / "s", backoff=AT_ONCE) as made:
        run_id = await made.create(tool_load.tool_load(tmp_path, environment, STEPS))
        await _kill_at_random(made)
        run = await made.finish(120.0)
        ended = {service: made.ends(service) for service in SERVICES}
    database = tmp_path / "s" / "store.sqlite"
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert all(count >= KILLS for count in ended.values()), ended
    assert audit(database, run_id, STEPS, KILLED) == []
    assert list(tool_load.answered_otherwise(database)) == []
    assert await tool_load.moved(database, environment) == []
    tool_load.change_a_call(database)
    assert await tool_load.moved(database, environment), "another path leads elsewhere"
