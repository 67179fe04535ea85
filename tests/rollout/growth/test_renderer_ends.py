"""Paths whose actions no turn can follow: they end there as leaves that are scored."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Branch
from banyan.segment import Finish, Kind
from banyan.tree import Tree
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer, CharacterTurns
from tests.rollout.growing import survivors
from tests.rollout.growth.test_actions import acting, grow, texts

STUCK = "=1*1?"


def bridge_none(prompt: Sequence[int], action: Sequence[int], text: str) -> list[int] | None:
    """Bridge any action but one."""
    said = CharacterTokenizer().decode(np.array(action, np.int32))
    return None if said.endswith(STUCK) else CharacterTokenizer().encode(f" {text} ").tolist()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CharacterTurns, "bridge", staticmethod(bridge_none))


def test_a_path_that_cannot_be_bridged_is_a_leaf_with_the_reason(stuck: None) -> None:
    grower, over = grow(acting(turns=2, width=16))
    assert over
    ended = {leaf for leaf, reason in grower.leaves.items() if reason == "RENDERER"}
    assert ended and len(grower.leaves) == 16
    for leaf in ended:
        last = grower.tree.segments[leaf.segment]
        assert (last.finish, leaf.end) == (Finish.LENGTH, len(last))
        assert grower.completion(leaf) == STUCK, "a scorer gets the action"
        assert not grower.tree.children.get(leaf.segment), "the environment was not asked"
    for leaf in set(grower.leaves) - ended:
        last = grower.tree.segments[leaf.segment]
        turns = sum(s.kind is Kind.TOOL for s in grower.tree.lineage(leaf.segment))
        assert last.finish is Finish.STOP or turns == 2, "turns used up are no matter of renderers"


def test_a_tree_that_is_resumed_ends_its_paths_alike(stuck: None) -> None:
    whole, _ = grow(acting(turns=2, width=16))
    for cut in (3, 9, 20):
        rng = random.Random(cut)
        part, _ = grow(acting(turns=2, width=16), rng=rng, most=cut)
        resumed, _ = grow(acting(turns=2, width=16), tree=survivors(part.tree, rng), rng=rng)
        assert set(resumed.tree.segments) == set(whole.tree.segments)
        assert resumed.leaves == whole.leaves and texts(resumed) == texts(whole)


def test_a_renderer_that_depends_on_the_answer_ends_its_tree_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only_empty = staticmethod(lambda prompt, action, text: None if text else [1])
    monkeypatch.setattr(CharacterTurns, "bridge", only_empty)
    with pytest.raises(InvalidInput, match="chatml 1 writes no turn for an answer of"):
        grow(acting(turns=2))


def test_each_turn_gets_the_whole_context(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[tuple[list[int], list[int]]] = []

    def note(_: object, prompt: list[int], action: list[int], text: str) -> list[int]:
        contexts.append((prompt, action))
        return CharacterTokenizer().encode(f" {text} ").tolist()

    monkeypatch.setattr(CharacterTurns, "bridge", note)
    grower, _ = grow(acting(turns=3, width=4))
    tree: Tree = grower.tree
    expected = []
    for segment in tree:
        if segment.kind is Kind.TOOL:
            place = Branch(segment.parent, segment.fork, 0)
            path = tree.prefix_tokens(place.parent, place.fork).tolist()
            start = tree.context_length(place.parent, place.fork)
            expected.append((path[:start], path[start:]))
    assert expected and all(context in contexts for context in expected)
