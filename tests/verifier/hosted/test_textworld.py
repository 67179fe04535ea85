"""TextWorld's games in a confined child with an interpreter of their own (`make textworld`)."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.errors import InvalidInput
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_hosts import step

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-textworld" / "bin" / "python"
_MADE = """
import json
from bench.textworld import games
games.KNOWS = 1.0
made = [games.row_of(3), games.path_of(0)]
print(json.dumps([*made, games.row_of(games._APART), games.row_of(3) == made[0]]))
"""

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="`make environments NAME=textworld` first"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    pool = Pool(Limits(deadline_s=5.0), width=1)
    yield Hosts(pool)
    await pool.close()


@pytest.fixture(scope="module")
def made() -> list[Any]:
    """Return a row, a path of a player who knows the way, its row, and whether rows come again."""
    command = [str(PYTHON), "-c", _MADE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def hosted(**settings: Any) -> Hosted:
    hosting = Hosting(end=".", python=str(PYTHON))
    return Hosted("methods.environment.textworld:TextWorld", settings, hosting)


async def test_a_game_is_won_on_its_shortest_way(hosts: Hosts, made: list[Any]) -> None:
    _, path, row, _ = made
    assert path["prompt"] == row["prompt"] and path["reward"] == 1.0
    environment = hosted()
    state = environment.reset(row, 7)
    rooms = []
    for number, (action, text) in enumerate(path["turns"], 1):
        answer = await step(hosts, environment, state, action)
        last = number == len(path["turns"])
        assert (answer.text, answer.reward, answer.done) == (text, float(last), last)
        state = answer.state
        rooms.append(answer.anchor)
    assert len(rooms) == row["length"] and len(set(rooms)) == row["length"] - 1


async def test_branches_do_not_see_each_other(hosts: Hosts, made: list[Any]) -> None:
    row = made[0]
    environment = hosted()
    start = environment.reset(row, 7)
    wrong = await step(hosts, environment, start, "fly away .")
    assert wrong.text.startswith("You can't. ") and row["prompt"].endswith(wrong.text[11:])
    exits = wrong.text.partition("Exits: ")[2].strip(".").split(", ")
    there = [await step(hosts, environment, wrong.state, f"Go {way}.") for way in exits]
    looked = await step(hosts, environment, wrong.state, "look .")
    assert wrong.anchor == looked.anchor, "one room is one state, whatever was said"
    assert len({looked.anchor, *(answer.anchor for answer in there)}) == len(exits) + 1
    assert all(answer.reward == 0.0 and not answer.done for answer in there)


async def test_the_last_turn_ends_the_game(hosts: Hosts, made: list[Any]) -> None:
    environment = hosted(turns=2)
    one = await step(hosts, environment, environment.reset(made[0], 7), "look .")
    two = await step(hosts, environment, one.state, "look .")
    assert (one.done, two.done, two.reward) == (False, True, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": "Somewhere. Exits: up."}, "the row's prompt does not show"),
        ({"rooms": 99}, "make no game"),
        ({"seed": None}, "make no game"),
    ],
)
async def test_a_row_of_another_game_is_a_fault_and_no_answer(
    hosts: Hosts, made: list[Any], change: dict[str, Any], message: str
) -> None:
    environment = hosted()
    with pytest.raises(InvalidInput, match=message):
        await step(hosts, environment, environment.reset(made[0] | change, 7), "look .")


async def test_settings_are_checked(hosts: Hosts, made: list[Any]) -> None:
    environment = hosted(turns=0)
    with pytest.raises(InvalidInput, match=r"turns must be a whole number in 1\.\.100, got 0"):
        await step(hosts, environment, environment.reset(made[0], 7), "look .")


async def test_rows_come_out_alike_and_name_no_way(made: list[Any]) -> None:
    assert made[3] and set(made[0]) == {"seed", "length", "rooms", "prompt"}
