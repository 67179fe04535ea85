"""Actions in tokens: where one ends, and what a renderer is told of the path to it."""

from collections.abc import Sequence

import numpy as np
import pytest

from banyan.environments.renderers import RendererSpec
from banyan.plugins import Branch
from banyan.segment import Kind, Segment
from banyan.tree import Tree
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer, CharacterTurns
from services.rollout.engines.turns import Actions, Turns

END = min(CharacterTokenizer.eos)
TREE = b"t" * 32


class Split(CharacterTurns):
    """Turns that say how their path was split: 0 stands behind each of the two parts."""

    def bridge(self, prompt: Sequence[int], action: Sequence[int], text: str) -> list[int]:
        return [*prompt, 0, *action, 0]


class Splitting(CharacterTokenizer):
    def renderer(self, spec: RendererSpec) -> CharacterTurns:
        return Split()


@pytest.mark.parametrize(
    ("text", "end", "calls"),
    [("=6*7?", [], True), ("=6*7?", [END], False), ("=6*7", [], False), ("so 42", [END], False)],
)
def test_a_call_ends_with_its_mark_and_not_with_the_models_end(
    text: str, end: list[int], calls: bool
) -> None:
    actions = Actions(Turns(2, "?"), CharacterTokenizer())
    tokens_T = np.array([*CharacterTokenizer().encode(text), *end], np.int32)
    assert actions.ends(tokens_T) is calls


def test_an_action_begins_behind_the_last_answer_wherever_its_segment_was_forked() -> None:
    root = Segment(TREE, b"", 0, 0, Kind.PROMPT, np.array([1, 2]))
    first = _policy(root, 2, [3, 4, 5])
    tool = Segment(TREE, first.id, 3, 0, Kind.TOOL, np.array([6]))
    second = _policy(tool, 1, [7, 8])
    tree = Tree(TREE, [root, first, tool, second])
    for action, path in (
        (_policy(first, 2, [9], 1), [1, 2, 0, 3, 4, 9, 0]),  # forked inside of the first action
        (second, [1, 2, 3, 4, 5, 6, 0, 7, 8, 0]),
        (_policy(second, 1, [9]), [1, 2, 3, 4, 5, 6, 0, 7, 9, 0]),
    ):
        actions = Actions(Turns(2, "?"), Splitting())
        assert actions.answer(tree, action, "42").tolist() == path
    for parent, taken in ((root, 0), (first, 0), (tool, 1), (second, 1)):
        branch = Branch(parent.id, len(parent), 0)
        assert Turns(2, "?").taken(tree, branch) == taken
        assert Actions(Turns(1, "?"), Splitting()).turn_left(tree, branch) == (taken < 1)


def _policy(parent: Segment, fork: int, tokens: list[int], ordinal: int = 0) -> Segment:
    logprobs_T = -np.ones(len(tokens))
    return Segment(TREE, parent.id, fork, ordinal, Kind.POLICY, np.array(tokens), logprobs_T)
