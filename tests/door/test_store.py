"""`banyan.open` on the folder of an earlier run: typed, frozen objects, read when needed."""

import builtins
import dataclasses
import datetime
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import banyan
from banyan.cli.render import console
from banyan.errors import InvalidInput, NotFound
from banyan.plugins import Advantages, GroupTrees
from banyan.stored import pages
from banyan.v1 import runstore_service_pb2 as rs
from methods.advantages.grpo import Grpo
from methods.advantages.rloo import Rloo
from tests.cli.command import banyan as command

RUN = "before-1c424680"
TREE = "ef63ee7c99b593db"


def test_a_run_has_its_facts_as_plain_python(store: banyan.Store) -> None:
    run = store.run("before")
    assert store.runs() == (run,) and store.run() == run
    assert (run.run_id, run.state, run.step, run.over) == (RUN, "TRAINING", 5, False)
    assert run.created is not None and run.created.tzinfo is datetime.UTC and run.ended is None
    assert run.recipe.name == "before"
    assert run.policies()[-1].step == 5 and len(run.policies()[-1].digest) == 64
    assert [member.trees for member in run.members()] == [32]
    with pytest.raises(NotFound, match="no folder"):  # of this old store
        _ = run.checkpoint


def test_a_folder_of_another_user_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(InvalidInput, match="is closed to this user"):
        banyan.open(tmp_path)


def test_metrics_are_rows_and_a_frame(store: banyan.Store) -> None:
    run = store.run()
    rows = run.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    frame = run.frame()
    assert list(frame.index) == [1, 2, 3, 4, 5]
    assert list(frame["reward"]) == [row["reward"] for row in rows]


def test_a_frame_without_pandas_says_what_to_install(
    store: banyan.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pip install pandas"):
        store.run().frame()


def test_evaluations_have_intervals(store: banyan.Store) -> None:
    first = store.run().evaluations()[0]
    assert (first.label, first.rows, first.answers, first.accuracy) == ("before-greedy", 6, 6, 1.0)
    assert first.interval is not None and 0.6 < first.interval[0] < first.interval[1] == 1.0


def test_trees_come_in_pages_and_none_twice(
    store: banyan.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [tree.tree_id for tree in store.run().trees(purpose=None)]
    monkeypatch.setattr(pages, "PAGE", 7)
    asked: list[int] = []
    listed = type(store.client).listed
    monkeypatch.setattr(
        type(store.client),
        "listed",
        lambda client, filters: asked.append(filters.limit) or listed(client, filters),
    )
    found = store.run().trees(purpose=None)
    assert asked == []  # nothing is read before it is asked for
    assert next(found).tree_id == whole[0] and asked == [7]
    assert [whole[0], *(tree.tree_id for tree in found)] == whole and len(set(whole)) == 32
    assert asked == [7] * 5


def test_evaluations_are_in_order_of_what_they_measure(
    store: banyan.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["after-greedy", "before-greedy", "odd", "step-10-greedy", "step-9-greedy"]
    known = rs.ReadProgressResponse(
        step=12, evals=[rs.EvalProgress(label=label, groups=4) for label in labels]
    )
    monkeypatch.setattr(type(store.client), "progress", lambda *_: known)
    found = [(e.label, e.step) for e in store.run().evaluations()]
    assert found == [
        ("before-greedy", 0),
        ("step-9-greedy", 9),
        ("step-10-greedy", 10),
        ("after-greedy", 12),
        ("odd", None),
    ]


def test_trees_are_chosen_by_purpose_state_and_label(store: banyan.Store) -> None:
    run = store.run()
    assert {tree.purpose for tree in run.trees()} == {"TRAIN"}
    consumed = list(run.trees(state="consumed"))
    assert consumed and {tree.state for tree in consumed} == {"CONSUMED"}
    by_step = [{tree.tree_id for tree in run.trees(step=step)} for step in range(1, 6)]
    assert set.union(*by_step) == {tree.tree_id for tree in consumed}
    assert sum(map(len, by_step)) == len(consumed) and list(run.trees(step=6)) == []
    labelled = list(run.trees(label="before-greedy"))
    assert len(labelled) == 6 and {tree.label for tree in labelled} == {"before-greedy"}
    assert consumed[0].opened is not None and consumed[0].closed is not None
    assert consumed[0].opened < consumed[0].closed


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"state": "OPEN"}, "state 'OPEN' is none of GROWING, SCORING, CLOSED, CONSUMED, DROPPED"),
        ({"purpose": "train-all"}, "purpose 'train-all' is none of TRAIN, EVAL"),
        ({"step": 0}, "step 0 trained on nothing: the first step is 1"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_exist(
    store: banyan.Store, chosen: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        next(store.run().trees(**chosen))


def test_a_tree_has_segments_leaves_and_scores(store: banyan.Store) -> None:
    tree = store.tree(TREE)
    assert (tree.run_id, tree.state, tree.purpose, tree.index) == (RUN, "CONSUMED", "TRAIN", 0)
    assert tree.row["question"] == "3 + 3" and tree.generate["name"] == "iid"
    prompt, first = tree.segments[:2]
    assert (prompt.kind, prompt.parent, prompt.policy, prompt.text) == (
        "PROMPT", None, None, "3 + 3",
    )  # fmt: skip
    assert (first.kind, first.parent, first.origin, first.finish) == (
        "POLICY", prompt.id, None, "STOP",
    )  # fmt: skip
    assert first.tokens.dtype == np.int32 and first.logprobs.dtype == np.float32
    assert len(first) == len(first.logprobs) == 2 and len(prompt.logprobs) == 0
    assert first.policy is not None and first.policy.step == 4
    assert [leaf.reward for leaf in tree.leaves] == [0.0, 1.0, 0.0, 0.0]
    assert tree.leaves[0].scores[0].scorer == "number" and tree.leaves[0].scores[0].value == 0.0
    assert tree.path(tree.leaves[0]) == (prompt, first)
    other = dataclasses.replace(tree.leaves[0], segment="0" * 64)
    with pytest.raises(NotFound, match="segment 0000"):
        tree.path(other)


def test_nothing_can_be_changed(store: banyan.Store) -> None:
    run, tree = store.run(), store.tree(TREE)
    segment, leaf = tree.segments[1], tree.leaves[0]
    for thing, name in (
        (run, "step"),
        (segment, "text"),
        (leaf, "reward"),
        (leaf.scores[0], "value"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)
    with pytest.raises(ValueError, match="read-only"):
        segment.logprobs[0] = 0.0
    with pytest.raises(TypeError):
        leaf.scores[0].parts["mine"] = 1.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        tree.state = "CLOSED"  # type: ignore[misc]


def test_advantages_are_those_of_the_command(store: banyan.Store) -> None:
    credited = store.tree(TREE).advantages()
    by_node = {credit.node: credit.advantage for credit in credited}
    assert [round(by_node[node], 3) for node in range(1, 5)] == [-0.5, 1.5, -0.5, -0.5]
    assert credited[2].text == "6" and credited[2].value == 1.0 and credited[2].paths == 1


def test_advantages_of_another_estimator(store: banyan.Store) -> None:
    tree = store.tree(TREE)
    found = {credit.node: credit.advantage for credit in tree.advantages(estimator="rloo")}
    assert [round(found[node], 3) for node in range(1, 5)] == [-0.333, 1.0, -0.333, -0.333]
    with pytest.raises(InvalidInput, match="no-such"):
        tree.advantages(estimator="no-such")
    with pytest.raises(InvalidInput, match="settings whiten belong to an estimator"):
        tree.advantages(whiten=True)


class Firstborn:
    """An estimator as a notebook's cell may hold one: the first leaf of a tree gets it all."""

    def estimate(self, group: GroupTrees) -> Advantages:
        values = [np.zeros(len(tree.rewards_L)) for tree in group.trees]
        for value in values:
            value[0] = 7.0
        return Advantages(leaf_G_L=tuple(values))


def test_an_estimator_may_be_an_object(store: banyan.Store) -> None:
    tree = store.tree(TREE)
    rows = (("rloo", Rloo()), ("dr-grpo", Grpo(scale="none")))
    for name, made in rows:
        assert tree.advantages(made) == tree.advantages(name) != tree.advantages()
    first, *others = (c.advantage for c in tree.advantages(Firstborn()) if c.node > 0)
    assert first == 7.0 and others and set(others) == {0.0}
    with pytest.raises(InvalidInput, match="settings scale belong to an estimator that is named"):
        tree.advantages(Grpo(), scale="none")
    for wrong in (Grpo, object(), 7):
        with pytest.raises(InvalidInput, match=r"is no estimator: .* the method `estimate"):
            tree.advantages(wrong)  # type: ignore[arg-type]


def test_text_and_picture_may_show_the_credit_of_another_estimator(store: banyan.Store) -> None:
    tree = store.tree(TREE)
    assert "advantage +0.750" in tree.render(estimator="dr-grpo") != tree.render()
    assert tree.render(estimator=Grpo(scale="none")) == tree.render(estimator="dr-grpo")
    picture = tree.svg(estimator=Grpo(scale="none"))
    assert "credit by Grpo" in picture and "A +0.75" in picture
    assert "credit by" not in tree.svg()
    for draw in (tree.render, tree.svg):
        with pytest.raises(InvalidInput, match="no-such"):  # the run's own would be left out
            draw(estimator="no-such")


def test_a_tree_renders_as_the_command_shows_it(store: banyan.Store, state: Path) -> None:
    tree = store.tree(TREE)
    shown = command("trees", "show", TREE, "--state", state).stdout
    assert tree.render(longest=None) == shown and "advantage +1.500" in shown
    assert "\x1b[" in tree.render(colour=True) and "\x1b" not in tree.render()


def test_a_notebook_gets_a_picture(store: banyan.Store) -> None:
    html = store.tree(TREE)._repr_html_()
    assert html.startswith('<div style="overflow-x: auto"><svg') and "<script" not in html


def test_in_a_kernel_a_text_is_returned_and_lines_are_lines(
    store: banyan.Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel of Jupyter is known by its shell, and asks programs for colours."""
    text = store.tree(TREE).render()
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert store.tree(TREE).render() == text
    out = console._console(stderr=False)
    out.print("[bold]a line[/bold]")
    assert not out.is_terminal and capsys.readouterr().out == "a line\n"


def test_hostile_text_stays_text_in_a_notebook(store: banyan.Store) -> None:
    tree = store.tree(TREE)
    hostile = '</svg><script>alert(1)</script><img src=x onerror="alert(1)">\x1b[2J'
    tree._message.segments[1].text = hostile
    many = store.tree(TREE)
    many._message.segments[1].text = hostile
    many.svg = lambda: (_ for _ in ()).throw(InvalidInput("too many leaves"))  # type: ignore
    assert many._repr_html_().startswith("<pre>")
    for html in (tree._repr_html_(), many._repr_html_()):
        assert "<script" not in html and "<img" not in html and "\x1b" not in html


def test_lineage_leads_to_batch_and_policy(store: banyan.Store) -> None:
    segment = store.tree(TREE).segments[1]
    found = store.lineage(segment.id[:12])
    assert found.ancestors[-1] == segment and found.tree_id.startswith(TREE)
    assert [(batch.ordinal, batch.use) for batch in found.batches] == [(4, "train")]
    assert found.batches[0].policy is not None and found.batches[0].policy.step == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [("ef6", "8 to 64 hex digits"), ("not hex!", "is not an id"), ("00" * 32, "there is no tree")],
)
def test_ids_that_are_none_are_refused(store: banyan.Store, text: str, words: str) -> None:
    with pytest.raises((InvalidInput, NotFound), match=words):
        store.tree(text)


def test_a_wrong_odd_digit_finds_nothing(store: banyan.Store) -> None:
    with pytest.raises(NotFound, match="there is no tree ef63ee7c99b5d"):
        store.tree("ef63ee7c99b5d")


def test_a_closed_store_says_so(state: Path) -> None:
    store = banyan.open(state)
    run = store.run()
    store.close()
    store.close()
    with pytest.raises(InvalidInput, match="is closed"):
        run.metrics()
    assert "closed" in repr(store)


def test_a_store_outlives_the_thread_that_opened_it(state: Path) -> None:
    opened: list[banyan.Store] = []
    thread = threading.Thread(target=lambda: opened.append(banyan.open(state)))
    thread.start()
    thread.join(60)
    with opened[0] as store:
        assert store.run().run_id == RUN


def test_folders_without_a_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no store"):
        banyan.open(tmp_path)
    with pytest.raises(NotFound, match="nothing runs on"):
        (tmp_path / "store.sqlite").touch()
        banyan.Client.connect(tmp_path)


def test_a_store_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(InvalidInput, match=r"store\.sqlite"):
        banyan.open(tmp_path)
