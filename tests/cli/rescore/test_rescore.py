"""`banyan rescore`: leaves of a stored run get scores beside those that they have, once each."""

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from rich.tree import Tree as RichTree

from banyan.cli import trees
from banyan.cli.rescore import rescore, scoring
from banyan.client import Client
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from banyan.recipe import Filter, Recipe
from banyan.render import leaf_scores
from banyan.tree import Leaf
from banyan.v1 import runstore_service_pb2 as rs
from methods.filter.length import Length
from services.treestore.service import running
from services.treestore.storage.settings import Settings
from services.verifier.sandbox.lane import Verdict
from services.verifier.scoring import Scoring
from tests.cli.command import banyan
from tests.cli.refusals import refused
from tests.system.test_made_before import RUN, STORED

LENGTH = Filter(name="length", settings={"most": 1})
REWARD = "def reward(completion, **row):\n    return float(len(completion.strip()) {than} 1)\n"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the folder of a finished part of a run: 92 leaves with a score of `number`."""
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "state"


@pytest.fixture
async def client(state: Path) -> AsyncIterator[Client]:
    """Yield a client of a store without a bus, as the command starts it."""
    settings = Settings(state=state, listen="127.0.0.1:0", offline=True)
    async with running(settings) as (server, loops):
        assert loops is None
        with Client(server.address) as made:
            yield made


async def scored(client: Client, state: Path, part: Filter) -> tuple[rs.Rescorer, scoring.Counts]:
    recipe = Recipe(name="before", model="any", task={"name": "arithmetic"})
    return await scoring.rescored(client, RUN, recipe, part, state)


async def stored(client: Client) -> dict[str, tuple[float, float]]:
    """Return each leaf's text with its reward and its newest rescore's value."""
    lines = await asyncio.to_thread(lambda: list(client.export(RUN)))
    nodes = [node for line in lines for node in json.loads(line)["nodes"]]
    return {
        node["id"]: (node["text"], leaf["reward"], leaf["rescores"][-1]["value"])
        for node in nodes
        for leaf in node["leaves"]
        if "rescores" in leaf
    }


async def test_each_leaf_is_scored_once_and_keeps_the_score_that_it_has(
    client: Client, state: Path
) -> None:
    rescorer, counts = await scored(client, state, LENGTH)
    assert (counts.stored, counts.failed, rescorer.version) == (92, 0, Length(1).version)
    values = await stored(client)
    assert len(values) == 92 and {reward for _, reward, _ in values.values()} == {0.0, 1.0}
    for text, _, value in values.values():
        assert value == Length(1).score(text, {}).value
    result = await asyncio.to_thread(rescore._result, client, rescorer)
    changed = sum((reward >= 1) != (value >= 1) for _, reward, value in values.values())
    assert result["old_mean"] == sum(reward for _, reward, _ in values.values()) / 92
    assert result["new_mean"] == sum(value for *_, value in values.values()) / 92
    assert result["verdict_changed"] == changed / 92 > 0 and result["reason"] is None
    _, again = await scored(client, state, LENGTH)
    assert (again.stored, again.failed) == (0, 0)
    _, other = await scored(client, state, Filter(name="length", settings={"most": 2}))
    assert other.stored == 92, "other settings are another scorer"


class Halting(Client):
    """A client that is away after some messages."""

    left = 2

    def put_rescores(self, rescorer: rs.Rescorer, leaves: Sequence[rs.RescoredLeaf]) -> int:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().put_rescores(rescorer, leaves)


async def test_an_interrupted_command_goes_on_with_the_leaves_that_lack_a_score(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_AT_ONCE", 16)
    asked: list[str] = []
    score = Scoring.score

    async def counted(self: Scoring, spec: Any, completion: str, *args: Any, **more: Any) -> Any:
        asked.append(completion)
        return await score(self, spec, completion, *args, **more)

    monkeypatch.setattr(Scoring, "score", counted)
    settings = Settings(state=state, listen="127.0.0.1:0", offline=True)
    async with running(settings) as (server, _):
        with Halting(server.address) as halting, pytest.raises(KeyboardInterrupt):
            await scored(halting, state, LENGTH)
        assert len(asked) == 3 * 16
        with Client(server.address) as client:
            _, counts = await scored(client, state, LENGTH)
    assert counts.stored == 92 - 2 * 16 and len(asked) == 3 * 16 + counts.stored


async def test_a_fault_of_the_system_is_no_score(
    client: Client, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> Verdict:
        return Verdict("2", Unscorable("INFRASTRUCTURE: its child is gone", retry=True))

    with monkeypatch.context() as broken:
        broken.setattr(Scoring, "score", lost)
        _, counts = await scored(client, state, LENGTH)
    assert (counts.stored, counts.failed) == (0, 92) and "its child is gone" in counts.fault
    _, counts = await scored(client, state, LENGTH)
    assert counts.stored == 92, "it was tried again"


async def test_a_tree_shows_both(client: Client, state: Path) -> None:
    await scored(client, state, LENGTH)
    (tree, *_) = await asyncio.to_thread(lambda: list(client.trees(RUN, 1)))
    whole = await asyncio.to_thread(client.tree, tree.tree_id)
    leaf = whole.leaves[0]
    (words,) = leaf_scores.later(whole)[Leaf(leaf.segment, leaf.end)]
    assert words.startswith('again by length 3 {"most":1}: ') and words.endswith("(characters 1)")
    await scored(client, state, Filter(name="length", settings={"most": 2}))
    whole = await asyncio.to_thread(client.tree, tree.tree_id)
    drawn = Text.from_markup("\n".join(_labels(trees.render(whole, _recipe(), [whole]))))
    again = [line for line in drawn.plain.splitlines() if "again by" in line]
    assert len(again) == 2 * len(whole.leaves)
    assert all(line.startswith("again by length") for line in again), "each on a line of its own"


def _labels(tree: RichTree) -> list[str]:
    return [str(tree.label), *(label for child in tree.children for label in _labels(child))]


async def test_leaves_without_a_score_have_no_verdict_and_a_reason(
    client: Client, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []

    async def hardly(_: Any, spec: Any, completion: str, *__: Any, **___: Any) -> Verdict:
        texts.append(completion)
        if len(texts) % 4 == 0:
            return Verdict("9", Scored(1.0, {}))
        reason = "EXCEPTION: rare" if len(texts) % 4 == 1 else "TIMEOUT: it slept"
        return Verdict("9", Unscorable(reason))

    async def version(*_: Any) -> str:
        return "9"

    monkeypatch.setattr(Scoring, "score", hardly)
    monkeypatch.setattr(Scoring, "version", version)
    rescorer, _ = await scored(client, state, LENGTH)
    result = await asyncio.to_thread(rescore._result, client, rescorer)
    assert (result["rescored"], result["unscorable"]) == (92, 69)
    assert result["reason"] == "TIMEOUT: it slept" and result["new_mean"] == 1.0
    right = result["old_mean"]
    assert 0 < result["verdict_changed"] < 1 and 0 < right < 1

    async def never(*_: Any, **__: Any) -> Verdict:
        return Verdict("9", Unscorable("TIMEOUT: it slept"))

    monkeypatch.setattr(Scoring, "score", never)
    rescorer, _ = await scored(client, state, Filter(name="length", settings={"most": 3}))
    result = await asyncio.to_thread(rescore._result, client, rescorer)
    assert result["unscorable"] == 92 and result["verdict_changed"] is None


def _recipe(**more: Any) -> Recipe:
    return Recipe(name="r", model="any", task={"name": "arithmetic"}, **more)


@pytest.mark.parametrize(
    ("scorer", "settings", "message"),
    [
        ("majority", "", "scores the leaves of a whole group"),
        ("nunber", "", "no filter plugin 'nunber'"),
        ("length", "", "most"),
        ("length", "[1]", "must be a JSON object"),
        ("length", "{", "cannot be used"),
        ("length", '{"most": NaN}', "cannot be used"),
        ("number", '{"most": 1}', "most"),
    ],
)
def test_scorers_that_cannot_score_leaves_are_refused(
    scorer: str, settings: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        rescore._part(_recipe(), scorer, settings)
    assert message in str(refusal.value)


def test_settings_are_those_of_the_run_unless_others_are_given() -> None:
    recipe = _recipe(filter=[{"name": "length", "settings": {"most": 7}}])
    assert rescore._part(recipe, "length", "").settings == {"most": 7}
    assert rescore._part(recipe, "length", '{"most": 9}').settings == {"most": 9}


@pytest.mark.slow
def test_the_command_scores_with_a_function_in_a_child_and_its_next_version(
    state: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(REWARD.format(than="=="))

    def command(*more: str) -> dict[str, Any]:
        words = ("rescore", RUN[:8], "--scorer", "mine:reward", "--state", state, "--json", *more)
        ended = banyan(*words, cwd=tmp_path)
        assert ended.returncode == 0, ended
        return json.loads(ended.stdout)

    first, again = command(), command()
    assert (first["scored_now"], again["scored_now"]) == (92, 0)
    assert again | {"scored_now": 92} == first and first["new_mean"] is not None
    (tmp_path / "mine.py").write_text(REWARD.format(than="!="))
    other = command()
    assert other["version"] != first["version"] and other["scored_now"] == 92
    assert other["new_mean"] == pytest.approx(1 - first["new_mean"])
    refused(
        banyan("rescore", RUN, "--scorer", "mine:nothing", "--state", state, cwd=tmp_path),
        "mine:nothing",
    )
