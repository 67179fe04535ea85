"""seeds: solved problems before those that nobody solved, from what the run itself solved, and only if they are alike."""

import json
from pathlib import Path

import pytest

from banyan import plugins
from banyan.draws import Draws
from banyan.plugins import Budget, PromptStats
from banyan.v1 import runstore_service_pb2 as runs
from methods.control.seeds import Seeds
from methods.control.uniform import row_of
from services.gateway.allocation.allocator import Allocator
from services.gateway.allocation.history import History
from services.gateway.runs.opening import Opener
from services.gateway.runs.staleness_gate import PolicySteps
from services.gateway.tasks import dataset as rows_module

TEXTS = ["What is 12 + 7?", "What is 12 + 8?", "What is 31 + 4?", "Name the capital of France.", "What is 12 + 9?"]


def stats(became, texts=TEXTS) -> PromptStats:
    """What is known after groups of these rows: row, rewards, an answer that succeeded."""
    history = History()
    for ordinal, (row, rewards, solved) in enumerate(became):
        history.record_allocation(ordinal, row)
        history.record_outcome(ordinal, ordinal, rewards, [1] * len(rewards), solved)
    return PromptStats([{}] * len(texts), texts, history.stats)


def ask(seeds: Seeds, known: PromptStats):
    """What each row gets, by row."""
    rows = len(known.rows)
    given = seeds.allocate(known, Budget(range(rows), 9, rows, 1, 64), Draws(3))
    assert [a.row for a in given] == [row_of(rows, 3, ordinal) for ordinal in range(rows)]
    return {a.row: a for a in given}


SOLVED = [(1, (1.0, 0.0), "20"), (2, (1.0,), "35"), (3, (1.0,), "Paris"), (4, (0.0, 1.0), "21")]


def test_a_row_that_only_failed_gets_the_two_solved_problems_that_are_most_alike() -> None:
    given = ask(Seeds(), stats([(0, (0.0, 0.0), ""), *SOLVED]))
    said = [(m["role"], m["content"]) for m in given[0].messages]
    assert [content for role, content in said if role == "user"] in ([TEXTS[1], TEXTS[4]], [TEXTS[4], TEXTS[1]])
    answers = {TEXTS[1]: "20", TEXTS[4]: "21"}
    assert [role for role, _ in said] == ["user", "assistant"] * 2
    assert [answers[said[i][1]] for i in (0, 2)] == [said[i][1] for i in (1, 3)]
    assert "solved rows" in given[0].why
    assert all(not given[row].messages and not given[row].why for row in (1, 2, 3, 4)), "those that are solved are plain"


def test_the_nearest_is_last() -> None:
    texts = ["aaaa bbbb", "aaaa bbbb", "aaaa cccc"]
    given = ask(Seeds(), stats([(0, (0.0,), ""), (1, (1.0,), "one"), (2, (1.0,), "two")], texts))
    assert [m["content"] for m in given[0].messages] == ["aaaa cccc", "two", "aaaa bbbb", "one"]


def test_nothing_alike_is_a_plain_prompt() -> None:
    given = ask(Seeds(), stats([(0, (0.0, 0.0), ""), (3, (1.0,), "Paris")]))
    assert not given[0].messages and "nothing like it" in given[0].why
    assert ask(Seeds(alike=-1.0), stats([(0, (0.0, 0.0), ""), (3, (1.0,), "Paris")]))[0].messages
    assert not ask(Seeds(), stats([(0, (0.0, 0.0), "")]))[0].messages


def test_a_row_does_not_see_its_own_answer_nor_what_is_no_fact_yet() -> None:
    given = ask(Seeds(examples=9), stats([(0, (1.0,), "19"), (0, (0.0,), ""), (1, (1.0,), "20")]))
    assert [m["content"] for m in given[0].messages] == [TEXTS[1], "20"]
    history = History()
    history.record_allocation(0, 0)
    assert not ask(Seeds(), PromptStats([{}] * 5, TEXTS, history.stats))[0].messages
    unscored = ask(Seeds(), stats([(0, (), ""), *SOLVED]))
    assert not unscored[0].messages, "a row of which nothing could be scored did not fail"


def test_long_examples_are_cut() -> None:
    texts = ["x" * 30, "x" * 40]
    seeds = Seeds(chars=10)
    given = ask(seeds, stats([(0, (0.0,), ""), (1, (1.0,), "y" * seeds.solved_chars)], texts))
    assert [m["content"] for m in given[0].messages] == ["x" * 10 + " …", "y" * 10 + " …"]


def test_answers_are_kept_of_the_newest_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.allocation.history.KEPT_SOLVED", 2)
    known = stats([(1, (1.0,), "20"), (2, (1.0,), "35"), (1, (0.0,), ""), (1, (1.0,), "again"), (4, (1.0,), "21")])
    assert {row: s.solved for row, s in known.stats.items()} == {1: "again", 2: "", 4: "21"}
    assert plugins.KEPT_SOLVED >= 1000


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"chars": 0}, {"chars": 5000}, {"alike": 1.5}, {"examples": True}])
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError):
        Seeds(**wrong)


async def test_trees_are_opened_with_the_examples_which_come_from_the_store(store, recipe_of) -> None:
    recipe = recipe_of(
        control={"curriculum": "methods.control.seeds:Seeds", "curriculum_settings": {"chars": 50}},
        task={"name": "arithmetic", "holdout": 0.0, "system": "Answer with one number."},
    )
    rows = await rows_module.load(recipe, Path.cwd())
    count, store.batches = len(rows.train), 1
    asked = []

    async def read_outcomes(run_id, first, before, solved_chars=0, right=0.5):
        asked.append((solved_chars, right))
        groups = [runs.GroupOutcome(ordinal=o, rewards=[float(o > 0)], lengths=[2]) for o in range(count)]
        for group in groups[1:]:
            group.solved = f"answer {group.ordinal}"
        return runs.ReadOutcomesResponse(groups=groups, next_batch=1)

    store.read_outcomes = read_outcomes
    allocator = Allocator(store, "run", recipe, rows)
    await allocator.fill(range(count), 0)
    later = await allocator.fill(range(count, 2 * count), 1)
    assert asked == [(51, 0.5)]
    failed = row_of(count, recipe.seed, 0)
    (seeded,) = [a for a in later if a.messages]
    assert seeded.row == failed
    again = Allocator(store, "run", recipe, rows)
    assert await again.fill(range(count, 2 * count), 1) == later, "a second gateway reads what was decided"
    (spec,) = Opener("run", recipe, rows).training(count + later.index(seeded), seeded, PolicySteps(0))
    messages = json.loads(spec.messages_json)
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert messages[-1] == json.loads(rows.prompt(rows.train[failed]).messages_json)[-1]
    assert messages[2]["content"].startswith("answer ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"right": "x"}, "right must be a finite number, got 'x'"),
        ({"examples": 65}, "examples must be a whole number in 1..64, got 65"),
        ({"examples": True}, "examples must be a whole number in 1..64, got True"),
        ({"alike": float("nan")}, "alike must be a finite number"),
    ],
)
def test_settings_have_types_and_bounds(settings, said) -> None:
    with pytest.raises(ValueError, match=said):
        Seeds(**settings)
