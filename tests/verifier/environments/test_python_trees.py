"""Two branches never see each other's effects: random trees of sessions of Python."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from banyan.digest import blake
from services.verifier.environments.actions import Actions
from services.verifier.environments.states import States
from services.verifier.jail.chosen_sessions import ChosenSessions
from tests.verifier.environments.test_actions import KEY, Store, acted

BEGIN = "x, d = [], {'in': [0]}\nprint(x, d)"
# Each changes what other branches would see, were it one object.
CHANGES = (
    "x.append({n})",
    "x = x + [{n}]",
    "d['in'][0] += {n}",
    "d[{n}] = len(x)",
    "x.insert(0, {n})",
    "d['in'] = [*d['in'], {n}]",
)


@dataclass
class Runner:
    """Sessions that were proven on this machine, in a loop of their own."""

    loop: asyncio.Runner
    sessions: ChosenSessions


@pytest.fixture(scope="module")
def runner(proof: Path) -> Iterator[Runner]:
    """One start of workers for all examples."""
    with asyncio.Runner() as loop:
        sessions = ChosenSessions(proof, KEY)
        yield Runner(loop, sessions)
        loop.run(sessions.close())


class Told:
    """What a path's session should hold, by the rules of Python."""

    def __init__(self, codes: tuple[str, ...] = ()) -> None:
        self.codes = codes

    def says(self) -> str:
        there: dict[str, object] = {}
        for code in self.codes:
            exec(code.replace("\nprint(x, d)", ""), there)
        return f"{there['x']} {there['d']}"


async def _grow(runner: Runner, rng: random.Random, size: int) -> None:
    """Act at random places, up to three at once; states are lost at random."""
    store, paths = Store(environment="python"), {b"": Told()}
    actions = Actions(store, KEY, runner.sessions)
    number = 0
    while number < size:
        if rng.random() < 0.2:
            actions._states = States(0)
        asked = []
        for _ in range(rng.randint(1, 3)):
            parent = rng.choice([*store.answers] or [b""])
            code = rng.choice(CHANGES).format(n=number) + "\nprint(x, d)" if parent else BEGIN
            action = store.add(blake(bytes([number])), parent)
            paths[action] = Told((*paths[parent].codes, code))
            call = f"<python>{code}</python>"
            asked.append((action, acted(actions, store, action, call)))
            number += 1
        found = await asyncio.gather(*(answer for _, answer in asked))
        for (action, _), (_, text) in zip(asked, found, strict=True):
            assert text == paths[action].says(), paths[action].codes


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32), size=st.integers(4, 20))
def test_each_branch_has_the_variables_of_its_path(runner: Runner, seed: int, size: int) -> None:
    runner.loop.run(_grow(runner, random.Random(seed), size))
