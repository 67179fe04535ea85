"""Sessions of Python that a client opens, steps, forks and closes over gRPC."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from banyan.digest import blake
from banyan.errors import DeadlineMissed, InvalidInput, NotFound, TemporaryError
from banyan.programs.run import Outcome
from banyan.programs.session import SessionResult, Task
from banyan.v1 import tree_pb2
from services.verifier.environments.actions import Actions
from services.verifier.jail.chosen_sessions import ChosenSessions
from tests.verifier.environments.test_actions import KEY, Store, acted
from tests.verifier.opened.serving import Client, serving


@pytest_asyncio.fixture
async def client(sessions: ChosenSessions) -> AsyncIterator[Client]:
    async with serving(sessions=sessions) as made:
        yield made


def said(code: str) -> str:
    return f"<python>{code}</python>"


async def test_branches_do_not_see_each_others_variables(client: Client) -> None:
    begun = await client.begun("python")
    trunk = begun.environment_id
    assert begun.end == "</python>" and begun.about.startswith("You may run Python")
    assert (await client.step(trunk, said("x = [1]\nprint(x)"))).observation == "[1]"
    branches = [await client.fork(trunk) for _ in range(3)]
    texts = await asyncio.gather(
        *(client.step(key, said(f"x.append({n})\nprint(x)")) for n, key in enumerate(branches))
    )
    assert [text.observation for text in texts] == ["[1, 0]", "[1, 1]", "[1, 2]"]
    assert (await client.step(trunk, said("print(x)"))).observation == "[1]"
    assert len({trunk, *branches}) == 4


async def test_a_step_says_all_that_an_observation_has(client: Client) -> None:
    begun = await client.begun("calculator")
    answer = await client.step(begun.environment_id, "so <calc>6 * 7</calc>")
    assert (answer.observation, answer.reward, answer.done) == ("42", 0.0, False)
    assert answer.outcome == tree_pb2.TOOL_OUTCOME_OK
    assert answer.effect == tree_pb2.TOOL_EFFECT_NONE
    assert answer.state == begun.state == blake(b"") and answer.anchor == b""
    wrong = await client.step(begun.environment_id, "so 6 * 7")
    assert wrong.outcome == tree_pb2.TOOL_OUTCOME_MALFORMED


async def test_the_seed_decides_draws_and_settings_count(client: Client) -> None:
    draw, texts = said("import random\nprint(random.random())"), []
    for seed in (1, 1, 2):
        texts.append((await client.step(await client.open("python", seed=seed), draw)).observation)
    assert texts[0] == texts[1] != texts[2]
    settings = json.dumps({"begin": "[", "end": "]"})
    marked = await client.open("python", settings_json=settings)
    assert (await client.step(marked, "[print(7)]")).observation == "7"
    with pytest.raises(InvalidInput, match="seconds must lie in"):
        await client.open("python", settings_json='{"seconds": 1e9}')


async def test_steps_at_once_are_taken_one_after_the_other(client: Client) -> None:
    key = await client.open("python")
    await client.step(key, said("x = []"))
    answers = await asyncio.gather(
        *(client.step(key, said(f"x.append({n})\nprint(x)")) for n in range(10))
    )
    lists = sorted((json.loads(answer.observation) for answer in answers), key=len)
    assert [len(one) for one in lists] == list(range(1, 11))
    assert all(lists[-1][: len(one)] == one for one in lists)


async def test_equal_actions_find_the_states_of_a_tree(
    client: Client, sessions: ChosenSessions
) -> None:
    store = Store(environment="python")
    actions, action = Actions(store, KEY, sessions), store.add(b"a" * 32)
    draws = said("import random\nx = random.random()\nprint(x)")
    receipt, text = await acted(actions, store, action, draws)
    answer = await client.step(await client.open("python"), draws)
    assert (answer.observation, answer.state) == (text, receipt.observation.after)


class Lost:
    """Sessions whose next run is lost."""

    def __init__(self, sessions: ChosenSessions) -> None:
        self._sessions, self.lost = sessions, False

    async def do(self, task: Task) -> SessionResult:
        self.lost = not self.lost
        return SessionResult(Outcome.LOST) if self.lost else await self._sessions.do(task)


async def test_a_step_whose_runner_was_lost_may_be_taken_again(sessions: ChosenSessions) -> None:
    async with serving(sessions=Lost(sessions)) as client:
        begun = await client.begun("python")
        with pytest.raises(TemporaryError, match="session of environment python ended"):
            await client.step(begun.environment_id, said("print(1)"))
        assert blake(client.table.get(begun.environment_id).state) == begun.state
        answer = await client.step(begun.environment_id, said("print(1)"))
        assert answer.observation == "1"


async def test_a_step_whose_caller_left_has_not_happened(client: Client) -> None:
    key = await client.open("python", settings_json='{"seconds": 20.0}')
    before = (await client.step(key, said("x = 1"))).state
    with pytest.raises(DeadlineMissed):
        await client.step(key, said("x = 2\nwhile True: pass"), deadline_s=0.5)
    assert blake(client.table.get(key).state) == before
    assert (await client.step(key, said("print(x)"))).observation == "1"


async def test_an_environment_that_is_closed_at_work_has_no_answer(
    client: Client, eventually: Callable[..., Awaitable[None]]
) -> None:
    key = await client.open("python", settings_json='{"seconds": 50.0}')
    working = asyncio.create_task(client.step(key, said("while True: pass")))
    waiting = asyncio.create_task(client.step(key, said("print(1)")))
    await eventually(client.table.get(key).line.locked, 10.0, "a step under way")
    await client.close(key)
    begin = time.monotonic()
    for task in (working, waiting):
        with pytest.raises(NotFound, match="is no longer open: it was closed; open another"):
            await task
    assert time.monotonic() - begin < 10.0, "the step ends with its environment"
    assert (await client.step(await client.open("python"), said("print(1)"))).observation == "1"


async def test_long_answers_are_cut_and_long_actions_refused(client: Client) -> None:
    key = await client.open("python")
    answer = await client.step(key, said("print('a' * 5000)"))
    assert len(answer.observation) == 2000 and "[…]" in answer.observation
    with pytest.raises(InvalidInput, match="an action has 65537 characters; at most 65536"):
        await client.step(key, "x" * 65_537)


async def test_the_documented_client_runs_as_written(
    sessions: ChosenSessions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    code = next(block for block in blocks if "OpenEnvironment" in block)
    lines = [line for line in code.splitlines() if line and "import " not in line]
    assert len(lines) <= 10
    state = tmp_path / ".banyan"
    state.mkdir()
    (state / "secret").write_text("s" * 64)
    monkeypatch.chdir(tmp_path)
    async with serving(sessions=sessions, secret="s" * 64) as client:
        port = int(client.address.rsplit(":", 1)[1])
        (state / "ports.json").write_text(json.dumps({"verifier": port}))
        await asyncio.to_thread(exec, code, {})
    assert capsys.readouterr().out == "42\n"
