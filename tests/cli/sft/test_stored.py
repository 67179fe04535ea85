"""Of a stored run only paths that earned enough are learned."""

import math
from pathlib import Path

import pytest

from banyan.cli.sft import stored
from banyan.digest import blake
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.learner.sft import examples
from tests.learner.in_memory_learner import RUN, grown


def trees() -> list[tree_pb2.Tree]:
    """Return trees with one right path of four; the last has an unscorable one, too."""
    found = [
        tree for ordinal in range(3) for tree in grown(ordinal, b"p", row=bytes([ordinal]) * 32)
    ]
    lost = found[2].scores[2].score
    lost.CopyFrom(tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason="INFRASTRUCTURE"))
    return found


def test_only_paths_that_earned_enough_are_taken() -> None:
    paths = stored.chosen(RUN, trees(), 1.0)
    assert [len(tree.leaves) for tree in paths.trees] == [1, 1]
    assert [tree.key for tree in paths.trees] == [b"\0" * 32, b"\1" * 32]
    taken = [tree.view.leaves_L[tree.leaves[0]] for tree in paths.trees]
    earned = [
        scored.leaf.segment
        for message in trees()[:2]
        for scored in message.scores
        if scored.score.value == 1.0
    ]
    assert [leaf.segment for leaf in taken] == earned
    assert [line["segment"] for line in paths.lines()] == [segment.hex() for segment in earned]
    assert all(line["reward"] == 1.0 for line in paths.lines())


def test_their_tokens_are_those_of_the_stored_segments() -> None:
    paths = stored.chosen(RUN, trees(), 1.0)
    for tree in paths.trees:
        (part,) = tree.example(64).parts
        (path,) = part.paths
        segment = tree.view.tree.segments[tree.view.leaves_L[tree.leaves[0]].segment]
        assert path.token_T.tolist() == segment.tokens_T.tolist()
        assert len(part) == 5 + 3


def test_a_lower_bar_takes_more_and_an_unscorable_path_never() -> None:
    paths = stored.chosen(RUN, trees(), 0.0)
    assert [len(tree.leaves) for tree in paths.trees] == [4, 4, 3]
    found = [tree.example(64) for tree in paths.trees]
    assert examples.trained_tokens(examples.parts_of(found)) == 11 * 3


def test_nothing_that_earned_enough_is_said_with_the_best() -> None:
    with pytest.raises(InvalidInput, match="at least 2: the highest reward is 1; lower --at-least"):
        stored.chosen(RUN, trees(), 2.0)
    with pytest.raises(InvalidInput, match="nothing is scored"):
        stored.chosen(RUN, [], -math.inf)


def run(engine: str = "torch", tokenizer: bytes = b"") -> rs.Run:
    data = {"name": "r", "model": "m", "task": {"name": "arithmetic"}}
    recipe = Recipe.model_validate({**data, "resources": {"engine": engine}})
    return rs.Run(run_id="r-1", recipe_json=recipe.model_dump_json(), tokenizer_digest=tokenizer)


def test_a_run_of_other_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    stored.refuse_other_tokens(run(tokenizer=blake(b"{}")), tmp_path)
    for other in (run(tokenizer=blake(b"{ }")), run()):
        with pytest.raises(InvalidInput, match="r-1 was sampled by m, whose tokenizer is another"):
            stored.refuse_other_tokens(other, tmp_path)
    with pytest.raises(InvalidInput, match="scripted engine"):
        stored.refuse_other_tokens(run("scripted"), tmp_path)
