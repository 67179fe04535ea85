"""`banyan sample`, `chat` and `eval` with a model that repeats what it is asked: who gets what."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

from banyan.cli.checkpoint import answers, evaluate, sample
from banyan.cli.checkpoint.answers import Answer, Answerer
from banyan.cli.checkpoint.target import Target
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import load
from banyan.segment import Finish, Sampling

RECIPE = load.resolve(
    {
        "name": "sums",
        "model": "none",
        "task": {"name": "arithmetic", "system": "Add.", "holdout": 0.25},
        "generate": {"policy": "iid", "max_new_tokens": 7},
        "budget": {"steps": 1},
    }
)


class Echo:
    """A model whose answer is the conversation that it got."""

    asked: list[tuple[Any, Sampling]]

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.folder, self.answered = folder, 0

    def answers(self, prompts: Sequence[Any], sampling: Sampling) -> list[Answer]:
        Echo.asked += [([dict(m) for m in prompt], sampling) for prompt in prompts]
        return [Answer(f"to {p[-1]['content']} {n}", 2, "STOP") for n, p in enumerate(prompts)]


@pytest.fixture(autouse=True)
def _echo(monkeypatch: pytest.MonkeyPatch) -> None:
    Echo.asked = []
    target = Target("step-1 of r", Path("m"), RECIPE)
    monkeypatch.setattr(sample, "Answerer", Echo)
    for module in (sample, evaluate):
        monkeypatch.setattr(module, "found", lambda name, state: target)


def test_each_prompt_has_its_own_answers(capsys: pytest.CaptureFixture[str]) -> None:
    sample.sample("r", ["a", "b"], None, count=2, as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["prompt"], row["text"]) for row in rows] == [
        ("a", "to a 0"),
        ("a", "to a 1"),
        ("b", "to b 2"),
        ("b", "to b 3"),
    ]
    messages, sampling = Echo.asked[0]
    assert messages == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "a"},
    ]
    assert sampling.max_new_tokens == 7
    sample.sample("r", ["a"], None, system="Mine.", max_new_tokens=3)
    messages, sampling = Echo.asked[-1]
    assert messages[0]["content"] == "Mine." and sampling.max_new_tokens == 3


def test_a_conversation_is_remembered_and_each_turn_draws_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["one", "two", ""])
    monkeypatch.setattr(sample, "_asked", lambda: next(lines))
    sample.chat("r", seed=5)
    assert capsys.readouterr().out == "to one 0\nto two 0\n"
    (_, first), (messages, second) = Echo.asked
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "Add."),
        ("user", "one"),
        ("assistant", "to one 0"),
        ("user", "two"),
    ]
    assert (first.seed, second.seed) == (5, 6)


def judged(rewards: Callable[[str], float | None]) -> Any:
    """Return scoring that gives each answer a reward by its text."""

    async def score_rows(recipe: Recipe, pairs: Any) -> Any:
        reason = SimpleNamespace(
            verdict=SimpleNamespace(outcome=SimpleNamespace(reason="TIMEOUT: slow"))
        )
        return [
            [([reason] if rewards(t) is None else [], rewards(t)) for t in texts]
            for _, texts in pairs
        ]

    return score_rows


def evaluated(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rewards: Callable[[str], float | None],
    **more: Any,
) -> list[Any]:
    """Return what `banyan eval` prints of three held-out rows and one training row."""
    rows = SimpleNamespace(held_out=[{"question": q} for q in "abc"], train=[{"question": "t"}])
    monkeypatch.setattr("services.gateway.tasks.dataset.read", lambda *_: rows)
    monkeypatch.setattr("services.verifier.preview.trial_scores.score_rows", judged(rewards))
    monkeypatch.setattr(
        "services.gateway.tasks.messages", lambda row, task: [{"content": row["question"]}]
    )
    evaluate.evaluate("r", as_json=True, answers=True, **more)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_accuracy_is_of_the_answers_that_could_be_scored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"to a 0": 1.0, "to b 1": 0.5, "to c 2": None}
    *rows, summary = evaluated(monkeypatch, capsys, lambda text: values[text])
    assert [(row["row"]["question"], row["answer"]) for row in rows] == [
        ("a", "to a 0"),
        ("b", "to b 1"),
        ("c", "to c 2"),
    ]
    assert (summary["n"], summary["unscorable"], summary["accuracy"]) == (2, 1, 0.5)
    assert summary["mean_reward"] == 0.75 and summary["reason"] == "TIMEOUT: slow"


def test_several_answers_to_a_row_stay_with_it_and_rows_are_as_many_as_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Any] = {"samples": 2, "temperature": 1.0, "rows": 2}
    *rows, summary = evaluated(monkeypatch, capsys, lambda text: 1.0, **more)
    assert [(row["row"]["question"], row["answer"]) for row in rows] == [
        ("a", "to a 0"),
        ("a", "to a 1"),
        ("b", "to b 2"),
        ("b", "to b 3"),
    ]
    assert summary["accuracy"] == 1.0


@pytest.mark.parametrize(("every", "wanted"), [(False, "abc"), (True, "abct")])
def test_training_rows_count_only_if_all_rows_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every: bool, wanted: str
) -> None:
    *rows, _ = evaluated(monkeypatch, capsys, lambda text: 1.0, every_row=every)
    assert "".join(row["row"]["question"] for row in rows) == wanted


def test_scorers_and_rows_are_those_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    few = RECIPE.model_copy(update={"eval": RECIPE.eval.model_copy(update={"max_rows": 2})})
    own = load.resolve(
        {
            **json.loads(RECIPE.model_dump_json()),
            "eval": {"filter": [{"name": "length", "settings": {"most": 9}}]},
        }
    )
    target = Target("x", Path("m"), own)
    recipe, _ = evaluate._recipe(target, "", (), Path())
    assert [scorer.name for scorer in recipe.filter] == ["length"]
    rows = SimpleNamespace(held_out=[{"q": n} for n in range(5)], train=[])
    monkeypatch.setattr("services.gateway.tasks.dataset.read", lambda *_: rows)
    assert len(evaluate._rows(few, 0, False)) == 2 and len(evaluate._rows(few, 4, False)) == 4


def test_nothing_scored_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, summary = evaluated(monkeypatch, capsys, lambda text: None)
    assert (summary["n"], summary["accuracy"]) == (0, None)
    with pytest.raises(typer.Exit):
        evaluate._print(summary, False)
    assert "TIMEOUT: slow" in capsys.readouterr().out


class Engine:
    """An engine of two slots: it ends the oldest request in each step."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.keys: list[Any] = []
        self.most = 0
        self.tokenizer = SimpleNamespace(
            encode_chat=lambda messages: np.zeros(1, np.int32),
            decode=lambda tokens: "x" * len(tokens),
        )

    def submit(self, request: Any) -> None:
        self.requests.append(request)
        self.keys.append(request.draw_key)
        self.most = max(self.most, len(self.requests))

    def step(self) -> list[Any]:
        key = self.requests.pop(0).key
        finish = Finish.STOP if key == 0 else Finish.LENGTH if key < 5 else Finish.ABORTED
        return [SimpleNamespace(key=key, tokens_T=np.zeros(key, np.int32), finish=finish)]


def test_prompts_wait_for_the_engine_and_answers_are_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "_AT_ONCE", 2)
    answerer, engine = object.__new__(Answerer), Engine()
    answerer._engine = engine  # type: ignore[assignment]
    found = answerer.answers([[{"content": "q"}]] * 5, Sampling(max_new_tokens=3))
    assert [(a.text, a.tokens, a.finish) for a in found] == [
        ("", 0, "STOP"),
        *(("x" * n, n, "LENGTH") for n in range(1, 5)),
    ]
    assert engine.most == 2 and len(set(map(str, engine.keys))) == 5
    with pytest.raises(InvalidInput, match="prompt 5 does not fit"):
        answerer.answers([[{"content": "q"}]] * 6, Sampling(max_new_tokens=3))
