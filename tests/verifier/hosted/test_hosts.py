"""Classes of users that answer actions: in confined children, from bytes, branch by branch."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.environments.observation import Effect, ToolOutcome
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.plugins.environment import Answer
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one pool of children serves all
ROW = {"coin": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        pool = Pool(Limits(deadline_s=5.0), width=1)
        yield Hosts(pool)
        await pool.close()


def hosted(name: str, seconds: float = 5.0, python: str = "", **settings: Any) -> Hosted:
    hosting = Hosting(end=".", seconds=seconds, memory_mb=256, python=python)
    return Hosted(f"corridors:{name}", settings, hosting)


async def step(hosts: Hosts, environment: Hosted, state: bytes, action: str) -> Answer:
    turn = environment.turn(state, action)
    task = next(turn)
    try:
        turn.send(await hosts.do(task))
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("one step is one task")


@pytest.mark.parametrize("name", ["Corridor", "Saved"])
async def test_branches_go_on_from_their_own_place(hosts: Hosts, name: str) -> None:
    environment = hosted(name)
    start = environment.reset(ROW, 7)
    one = await step(hosts, environment, start, "right")
    assert one.text == "place 1" and one.effect is Effect.STATE and not one.done
    further = await step(hosts, environment, one.state, "right")
    back = await step(hosts, environment, one.state, "left")
    assert (further.text, back.text) == ("place 2", "place 0")
    won = await step(hosts, environment, further.state, "take")
    assert (won.text, won.reward, won.done) == ("you have the coin", 1.0, True)
    missed = await step(hosts, environment, back.state, "take")
    assert (missed.text, missed.reward, missed.done) == ("nothing here", 0.0, False)
    if name == "Saved":
        assert further.anchor == b"at 2" and json.loads(further.state)["past"] == []
    else:
        assert not further.anchor and len(json.loads(further.state)["past"]) == 2


async def test_an_action_that_fails_is_answered_and_leaves_its_place(hosts: Hosts) -> None:
    environment = hosted("Corridor")
    one = await step(hosts, environment, environment.reset(ROW, 7), "right")
    wrong = await step(hosts, environment, one.state, "fly")
    assert wrong.text == "error: ValueError: no way 'fly'"
    assert wrong.outcome is ToolOutcome.FAILED and wrong.state == one.state
    assert (await step(hosts, environment, wrong.state, "right")).text == "place 2"


async def test_the_seed_decides_draws(hosts: Hosts) -> None:
    environment = hosted("Dice")
    texts = []
    for seed in (1, 1, 2):
        first = await step(hosts, environment, environment.reset({}, seed), "go")
        texts.append((first.text, (await step(hosts, environment, first.state, "go")).text))
    assert texts[0] == texts[1] != texts[2] and texts[0][0] != texts[0][1]
    stopped = await step(hosts, environment, environment.reset({}, 1), "stop")
    assert stopped.done and stopped.reward == 1.0


async def test_a_class_whose_past_comes_out_otherwise_has_diverged(hosts: Hosts) -> None:
    environment = hosted("Drifting")
    first = await step(hosts, environment, environment.reset({}, 1), "a")
    with pytest.raises(Refused, match="answered action 1 of a path otherwise") as refused:
        await step(hosts, environment, first.state, "b")
    assert refused.value.reason == "ENVIRONMENT_DIVERGED"


async def test_a_million_characters_are_cut(hosts: Hosts) -> None:
    environment = hosted("Long")
    answer = await step(hosts, environment, environment.reset({}, 1), "a")
    assert len(answer.text) == 1 << 17 and answer.text.endswith("end") and "[…]" in answer.text


FAULTS = {
    "init": r"environment 'corridors:Bad' cannot be loaded: its constructor raised Runt",
    "reset": r"reset raised KeyError: 'field'",
    "effect": r"effect is 'external'; it must be none or state",
    "later": r"reset is async or a generator",
    "step": r"step\(action\) must return .*, got 'only a text'",
    "reward": r"a step's reward is nan",
    "anchor": r"anchor is 7; it must be a text or bytes",
    "snapshot": r"snapshot\(\) must return bytes, got 'text'",
    "large": r"snapshot\(\) returned 40000 bytes, and at most 28672 can be kept",
}


@pytest.mark.parametrize("where", FAULTS)
async def test_a_class_that_breaks_its_form_is_named(hosts: Hosts, where: str) -> None:
    environment = hosted("Bad", where=where)
    with pytest.raises(InvalidInput, match=FAULTS[where]):
        await step(hosts, environment, environment.reset({}, 1), "a")


SAID = {"text": "x", "reward": 1.0, "done": True, "effect": "none", "anchor": "", "snapshot": None}


class Forging:
    """A pool whose child lets the class write its answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.ask = AsyncMock(return_value=answer)


@pytest.mark.parametrize(
    "answer",
    [
        {**SAID, "reward": "nan"},
        {**SAID, "reward": 10**400},
        {**SAID, "reward": -1e200},
        {**SAID, "anchor": "not hex"},
        {**SAID, "anchor": "00" * 257},
        {"diverged": "x"},
        {"failed": "x", "outcome": int(ToolOutcome.OK)},
        {"failed": "x", "outcome": [3]},
        {"begun": "x"},
    ],
)
async def test_a_forged_answer_is_no_observation(answer: dict[str, Any]) -> None:
    forging = Hosts(cast(Pool, Forging(answer)))
    environment = hosted("Corridor")
    with pytest.raises(InvalidInput, match="corridors:Corridor gave no observation but"):
        await step(forging, environment, environment.reset(ROW, 1), "right")


OUTCOMES = {
    "exit": (ToolOutcome.FAILED, "error: SystemExit: 0"),
    "memory": (ToolOutcome.MEMORY, "error: the memory is full"),
    "crash": (ToolOutcome.FAILED, "error: the environment ended"),
    "kill": (ToolOutcome.CRASHED, "error: the environment crashed"),
    "hang": (ToolOutcome.CPU, "error: the time is over"),
}


@pytest.mark.parametrize("where", OUTCOMES)
async def test_what_an_action_causes_is_an_observation(hosts: Hosts, where: str) -> None:
    environment = hosted("Bad", seconds=0.5 if where == "hang" else 5.0, where=where)
    start = environment.reset({}, 1)
    answer = await step(hosts, environment, start, "a")
    assert (answer.outcome, answer.text, answer.state) == (*OUTCOMES[where], start)


async def test_a_step_that_waits_is_no_observation(hosts: Hosts) -> None:
    environment = hosted("Bad", seconds=0.3, where="sleep")
    with pytest.raises(TemporaryError, match="no answer in"):
        await step(hosts, environment, environment.reset({}, 1), "a")


@pytest.mark.parametrize(
    ("name", "python", "message"),
    [
        ("Missing", "", "has no attribute 'Missing'"),
        ("no_class", "", "its constructor raised TypeError"),
        ("Corridor", "/no/python", "make environments NAME"),
        ("Corridor", "/bin/true", "it needs Python 3.11"),
    ],
)
async def test_what_cannot_be_loaded_is_said(
    hosts: Hosts, name: str, python: str, message: str
) -> None:
    environment = hosted(name, python=python)
    with pytest.raises((InvalidInput, TemporaryError), match=message):
        await step(hosts, environment, environment.reset(ROW, 1), "right")


async def test_another_interpreter_answers_alike(hosts: Hosts) -> None:
    environment = hosted("Corridor", python=sys.executable)
    assert (await step(hosts, environment, environment.reset(ROW, 1), "right")).text == "place 1"


def documented(part: str) -> str:
    """Return the example of docs/environments.md that holds a text."""
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    return next(block for block in blocks if part in block)


GYMNASIUM = """
class Environment:
    def reset(self, seed):
        self.place = seed

    def step(self, move):
        self.place += move
        return self.place, 0.5, self.place > 4, False, {}


def make(name):
    return Environment()
"""


async def test_the_documented_environment_of_gymnasium_runs_as_written(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake.py").write_text(documented("class Lake"))
    (tmp_path / "gymnasium.py").write_text(GYMNASIUM)
    tmp_path.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = Hosted("lake:Lake", {}, Hosting(end="<go>"))
    state = environment.reset({}, 1)
    for action, text, done in (
        ("so right<go>", "you are at 3", False),
        ("fly<go>", "error: KeyError: 'fly'", False),
        ("right<go>", "you are at 5", True),
    ):
        answer = await step(hosts, environment, state, action)
        assert (answer.text, answer.done) == (text, done)
        state = answer.state


@pytest.mark.parametrize("keeps", [False, True])
async def test_the_documented_class_runs_as_written(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    code, kept = documented("class Corridor"), documented("def snapshot")
    assert len(code.splitlines()) <= 30
    (tmp_path / "documented.py").write_text(f"import json\n{code}\n{kept if keeps else ''}")
    tmp_path.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = Hosted("documented:Corridor", {"length": 3}, Hosting(end="<go>"))
    state = environment.reset({"coin": 1}, 0)
    for action, text, reward in (
        ("fly<go>", "error: ValueError: say left, right or take", 0.0),
        ("I am lost, so right<go> and more", "you are at 1", 0.0),
        ("take<go>", "the coin!", 1.0),
    ):
        answer = await step(hosts, environment, state, action)
        assert (answer.text, answer.reward) == (text, reward)
        state = answer.state
