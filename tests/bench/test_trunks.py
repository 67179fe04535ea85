"""The table of trunks: tokens of a leaf from a store's rows, success between two policies."""

import sqlite3
from pathlib import Path

import pytest
import yaml

from banyan.segment import Kind
from bench.trunks import measure as trunks

PROMPT, POLICY, TOOL = int(Kind.PROMPT), int(Kind.POLICY), int(Kind.TOOL)
FORCED = int(Kind.FORCED)
GROWING, CLOSED, CONSUMED, DROPPED = 1, 3, 4, 5


def test_a_tools_answer_is_prefilled_by_the_next_turn_and_shared_tokens_count_once(
    tmp_path: Path,
) -> None:
    """A prompt of 10, an action of 4, an answer of 3, and two paths of 5 and 6 behind it.

    Another tree of a prompt of 8, a forced token, and 2 behind it. Others are not whole, or not
    trained on.
    """
    with sqlite3.connect(tmp_path / "s.sqlite") as db:
        db.execute("create table trees (tree_id, run_id, purpose, state)")
        db.execute("create table leaves (tree_id, listed)")
        db.execute("create table segments (id, tree_id, parent, fork, kind, length, cached_tokens)")
        db.executemany(
            "insert into trees values (?, ?, ?, ?)",
            [
                (b"t", "r", 1, CLOSED),
                (b"f", "r", 1, CONSUMED),
                (b"g", "r", 1, GROWING),
                (b"d", "r", 1, DROPPED),
                (b"e", "r", 2, CLOSED),
            ],
        )
        db.executemany(
            "insert into leaves values (?, ?)",
            [(b"t", True), (b"t", True), (b"t", False), (b"f", True), (b"g", False), (b"e", True)],
        )
        db.executemany(
            "insert into segments values (?, ?, ?, ?, ?, ?, ?)",
            [
                (b"p", b"t", b"", 0, PROMPT, 10, 0),
                (b"a", b"t", b"p", 10, POLICY, 4, 0),
                (b"o", b"t", b"a", 4, TOOL, 3, 0),
                (b"x", b"t", b"o", 3, POLICY, 5, 14),
                (b"y", b"t", b"o", 3, POLICY, 6, 17),
                (b"q", b"e", b"", 0, PROMPT, 99, 0),
                (b"h", b"f", b"", 0, PROMPT, 8, 0),
                (b"i", b"f", b"h", 8, FORCED, 1, 2),
                (b"j", b"f", b"i", 1, POLICY, 2, 9),
                (b"k", b"g", b"", 0, PROMPT, 7, 0),
                (b"l", b"g", b"k", 7, POLICY, 50, 0),
                (b"m", b"d", b"", 0, PROMPT, 7, 0),
                (b"n", b"d", b"m", 7, POLICY, 60, 0),
            ],
        )
    counts = trunks.tokens_of(tmp_path / "s.sqlite", "r")
    assert counts == {"leaves": 3, "sampled": 15 + 2, "prefilled": 10 + 3 + 6, "given": 3}


def test_success_lies_between_two_policies() -> None:
    cell = {"tokens": [0, 100, 300], "accuracy": {"0": 0.2, "2": 0.8}}
    assert trunks.success(cell, 150) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="beyond 400"):
        trunks.success(cell, 400)


@pytest.mark.parametrize(("name", "arm"), [(n, a) for n, arms in trunks.ARMS.items() for a in arms])
def test_the_arms_of_a_recipe_grow_equally_many_leaves(name: str, arm: str) -> None:
    recipe = yaml.safe_load((trunks.RECIPES / f"{name}.yaml").read_text())
    for change in trunks.ARMS[name][arm]:
        key, _, value = change.partition("=")
        recipe[key] = yaml.safe_load(value)
    settings = recipe["generate"]["settings"]
    width = settings.get("width") or settings["starts"] * settings["branches"] ** settings["depth"]
    assert width == 8
