"""Two branches never see each other's effects: random trees of users' classes, without children."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.plugins.environment import Answer
from services.verifier.environments.hosts import Hosts
from services.verifier.hosted.user_class import UserEnvironment
from tests.verifier.hosted.corridors import Corridor, Saved

ROW = {"coin": 2}
ACTIONS = ("right", "right", "left", "take", "fly")


class Warm:
    """The one object of a warm child, from which every step of every branch begins."""

    def __init__(self, kind: type[Corridor]) -> None:
        self.environment = UserEnvironment(kind(), kind.__name__)

    async def ask(
        self, spec: Any, request: Mapping[str, Any], *, begin: Any = None
    ) -> dict[str, Any]:
        assert begin is None, "a class has no effect outside"
        return self.environment.did(request)


async def stepped(pool: Any, environment: Hosted, state: bytes, action: str) -> Answer:
    turn = environment.turn(state, action)
    result = await Hosts(pool).do(next(turn))
    try:
        turn.send(result)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("one step is one task")


def alone(kind: type[Corridor], actions: tuple[str, ...]) -> str:
    """Return the observation that ends a path which nothing stands beside."""
    made, text = kind(), ""
    made.reset(ROW)
    for action in actions:
        try:
            text = made.step(action)[0]
        except ValueError as error:
            text = f"error: ValueError: {error}"
    return text


@pytest.mark.parametrize("kind", [Corridor, Saved])
@given(seed=st.integers(0, 2**32), size=st.integers(2, 25))
def test_each_branch_stands_where_its_path_leads(
    kind: type[Corridor], seed: int, size: int
) -> None:
    rng, pool = random.Random(seed), Warm(kind)
    environment = Hosted(f"m:{kind.__name__}", {}, Hosting(end="."))
    places = {(): environment.reset(ROW, 7)}

    async def grow() -> None:
        for _ in range(size):
            path = rng.choice([*places])
            action = rng.choice(ACTIONS)
            answer = await stepped(pool, environment, places[path], action)
            assert answer.text == alone(kind, (*path, action))
            places[(*path, action)] = answer.state

    asyncio.run(grow())
