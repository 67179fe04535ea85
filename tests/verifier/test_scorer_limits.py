"""Deadline, memory and concurrency that a recipe names for a scorer: they reach it, and no
verifier gives more than its operator allows.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from banyan.programs.run import Outcome, Result, Run
from banyan.recipe_loader.load import parse
from services.chassis.process import settings as settings_reader
from services.verifier.preview.probe import check_ceilings
from services.verifier.sandbox.allowed.ceilings import Ceilings
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool, limits_of
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from services.verifier.settings import Settings
from services.verifier.store import specs_of

RECIPE = """
name: limited
model: SmolLM2-135M-Instruct
task: {name: arithmetic}
filter:
  - {name: regex, settings: {pattern: "7"}, deadline_s: 2.5, memory_mb: 64, concurrency: 3}
  - {name: number}
eval:
  filter: [{name: "mine:reward", deadline_s: 30}]
"""
ACTS = """
import time

def acts(completion, **row):
    if completion == "nap":
        time.sleep(2.0)
    held = bytearray(64 << 20) if completion == "hold" else b""
    return 1.0
"""


def test_what_a_recipe_names_reaches_the_scorer_and_nothing_else() -> None:
    specs = specs_of(parse(RECIPE).model_dump_json())
    regex, number, mine = specs["regex"], specs["number"], specs["mine:reward"]
    assert (regex.deadline_s, regex.memory_mb, regex.concurrency) == (2.5, 64, 3)
    assert (number.deadline_s, number.memory_mb, number.concurrency) == (None, None, None)
    own = Limits(deadline_s=10.0, memory_mb=1024, network=True)
    limits = limits_of(regex, own)
    assert (limits.deadline_s, limits.memory_mb, limits.network) == (2.5, 64, False)
    assert limits_of(mine, own) == Limits(deadline_s=30.0, memory_mb=1024)
    assert limits_of(number, own).deadline_s == 10.0


async def test_a_child_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acting.py").write_text(ACTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    scoring = Scoring(Pool(Limits(deadline_s=5.0, memory_mb=512), width=1))
    short = ScorerSpec("acting:acts", {}, deadline_s=0.7)
    small = ScorerSpec("acting:acts", {}, memory_mb=32)

    async def ones(spec: ScorerSpec) -> list[bool]:
        words = ("nap", "hold")
        return [(await scoring.score(spec, word, {})).outcome == Scored(1.0) for word in words]

    try:
        assert await asyncio.gather(ones(short), ones(small)) == [[False, True], [True, False]]
    finally:
        await scoring.close()


class Jail:
    """A jail whose runs last until they may end."""

    version = "fake"

    def __init__(self) -> None:
        self.under_way, self.go = 0, asyncio.Event()

    async def run(self, run: Run) -> Result:
        self.under_way += 1
        await self.go.wait()
        return Result(Outcome.DONE, stdout=b"4")

    async def close(self) -> None:
        """End."""


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (None, 8)])
async def test_examinations_at_once_are_as_many_as_the_recipe_says(
    concurrency: int | None, most: int, eventually: Any
) -> None:
    jail = Jail()
    scoring = Scoring(Pool(Limits()), jail, programs=8)
    spec = ScorerSpec("code", {}, concurrency=concurrency)
    row = {"tests": [{"stdin": "2", "stdout": "4"}]}
    answer = "```python\nprint(4)\n```"
    scores = [asyncio.create_task(scoring.score(spec, answer, row)) for _ in range(8)]
    await eventually(lambda: jail.under_way == most, 5.0)
    for _ in range(20):  # those that wait had their turn of the loop
        await asyncio.sleep(0)
    assert jail.under_way == most
    jail.go.set()
    verdicts = await asyncio.wait_for(asyncio.gather(*scores), 5.0)
    values = [v.outcome.value for v in verdicts if isinstance(v.outcome, Scored)]
    assert values == [1.0] * 8 and jail.under_way == 8


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"deadline_s": 121.0}, "BANYAN_SCORE_TIMEOUT_MOST_S=121"),
        ({"memory_mb": 4097}, "BANYAN_SCORE_MEMORY_MOST_MB=4097"),
        ({"concurrency": 17}, "BANYAN_CHILDREN_MOST=17"),
    ],
)
async def test_more_than_the_operator_allows_is_refused_with_the_setting(
    asked: dict[str, Any], setting: str
) -> None:
    spec, scoring = ScorerSpec("mine:reward", {}, **asked), Scoring(Pool(Limits()))
    alone = (await scoring.score(spec, "x", {})).outcome
    (together,) = await scoring.score_group(spec, ["x"], {})
    for outcome in (alone, together.outcome):
        assert isinstance(outcome, Unscorable) and setting in outcome.reason
    with pytest.raises(InvalidInput, match=setting):
        check_ceilings([spec])
    with pytest.raises(InvalidInput, match=setting):
        await scoring.version(spec)


def test_a_ceiling_is_never_below_what_a_scorer_has_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BANYAN_SCORE_TIMEOUT_S", "300")
    monkeypatch.setenv("BANYAN_SCORE_MEMORY_MOST_MB", "9000")
    expected = Ceilings(deadline_s=300.0, memory_mb=9000, concurrency=16)
    assert settings_reader.read(Settings).ceilings == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("filter.1.deadline_s=2", "filter.1.deadline_s: scorer number is pure code"),
        ("filter.1.concurrency=2", "filter.1.concurrency: scorer number is pure code"),
        ("filter.1={name: code, memory_mb: 64}", "set seconds and memory_mb in its settings"),
        ("filter.0.deadline_s=120", "must be below control.score_deadline_s, 120"),
        ("eval.filter.0.deadline_s=121", "eval.filter.0.deadline_s 121 must be below"),
        ("filter.0.deadline_s=0", "filter.0.deadline_s"),
        ("filter.0.memory_mb=1", "filter.0.memory_mb"),
        ("filter.0.concurrency=257", "filter.0.concurrency"),
        ("filter.1={name: regex, settings: {pattern: 8}}", "scorer regex stands twice"),
    ],
)
def test_limits_that_nothing_would_keep_are_refused(override: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(RECIPE, [override])
    assert message in str(refused.value)


def test_a_run_of_before_has_none() -> None:
    recipe = json.loads(parse(RECIPE).model_dump_json())
    for part in (*recipe["filter"], *recipe["eval"]["filter"]):
        for name in ("weight", "deadline_s", "memory_mb", "concurrency"):
            del part[name]
    assert {spec.deadline_s for spec in specs_of(json.dumps(recipe)).values()} == {None}
