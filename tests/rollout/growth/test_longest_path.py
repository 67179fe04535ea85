"""Paths whose answers outgrow the model: they end there as leaves that are scored."""

import random
from dataclasses import replace

import pytest

from banyan.plugins import Branch, Expansion
from banyan.segment import Finish, Kind
from banyan.tree import Tree
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.rollout.engines.port import Request
from services.rollout.engines.scripted.engine import ScriptedEngine
from services.rollout.engines.turns import Turns
from services.rollout.growth.grower import Grower
from services.rollout.growth.requests import RequestBuilder
from services.rollout.growth.spec import GrowSpec
from tests.rollout.growing import engine, survivors
from tests.rollout.growth.test_actions import SCRIPT, acting, grow, texts

PROMPT, CALL = 3, 5  # tokens of the prompt, and of a call


def within(longest: int, turns: int = 9) -> GrowSpec:
    """Return an assignment for a model with so many positions."""
    return replace(acting(width=8), turns=Turns(turns, "?", longest_path=longest))


@pytest.mark.parametrize("longest", range(PROMPT + 1, 40))
def test_no_path_is_longer_than_the_model(longest: int) -> None:
    grower, over = grow(within(longest))
    assert over and len(grower.leaves) == 8
    tree = grower.tree
    assert max(tree.prefix_length(s.id, len(s)) for s in tree) <= longest
    for leaf, reason in grower.leaves.items():
        last = tree.segments[leaf.segment]
        assert leaf.end == len(last) and (last.finish, reason) in (
            (Finish.LENGTH, "length"),
            (Finish.STOP, "stop"),
        )
        full = tree.prefix_length(leaf.segment, leaf.end) == longest
        assert full or last.finish is Finish.STOP
        if last.kind is Kind.TOOL:
            assert grower.completion(leaf) == "", "it says nothing behind the answer"


def test_an_answer_is_cut_where_the_model_ends_and_stays_whole_in_its_text() -> None:
    grower, _ = grow(within(PROMPT + CALL + 2))
    tools = [segment for segment in grower.tree if segment.kind is Kind.TOOL]
    assert {(s.text, len(s), s.finish) for s in tools} == {
        ("42", 2, Finish.LENGTH),
        ("1", 2, Finish.LENGTH),
    }
    assert {segment.receipt is not None for segment in tools} == {True}
    over, _ = grow(within(PROMPT + CALL))
    assert not [s for s in over.tree if s.kind is Kind.TOOL], "nothing is asked without room"
    assert {over.completion(leaf) for leaf in over.leaves} == {"=6*7?", "=1*1?"}


def test_an_answer_that_ends_the_episode_ends_it_also_when_it_is_cut() -> None:
    grower, over = grow(within(PROMPT + CALL + 1), done=True)
    assert over and set(grower.leaves.values()) == {"done"}


def test_requests_ask_for_no_more_than_there_is_room_for() -> None:
    seen = []

    class Noting(ScriptedEngine):
        def submit(self, request: Request) -> None:
            seen.append(len(request.prefix_P) + request.sampling.max_new_tokens)
            super().submit(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.rollout.engines.scripted.engine.ScriptedEngine", Noting)
        grow(within(20))
    assert len(seen) > 8 and max(seen) == 20


def test_the_engine_is_told_behind_which_actions_a_path_goes_on() -> None:
    seen: set[tuple[int, bool]] = set()

    class Noting(ScriptedEngine):
        def submit(self, request: Request) -> None:
            seen.add((len(request.prefix_P), request.acts))
            super().submit(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.rollout.engines.scripted.engine.ScriptedEngine", Noting)
        grow(replace(acting(width=8), turns=Turns(1, "?")))
    assert {acts for tokens, acts in seen if tokens == PROMPT} == {True}
    assert {acts for tokens, acts in seen if tokens > PROMPT} == {False}, "the last answer"


def test_forced_tokens_take_their_part_of_the_room() -> None:
    assignment = within(20)
    tree = Tree(assignment.tree_id)
    root = Grower(assignment, tree, engine(SCRIPT).tokenizer, "node").start() and tree.root
    assert root is not None and len(root) == PROMPT
    wanted = Expansion(Branch(root.id, PROMPT, 0), assignment.sampling, forced=(1, 2, 3, 4))
    (request,) = RequestBuilder(assignment, tree, 1).build([wanted], [])
    assert PROMPT + 4 + request.sampling.max_new_tokens == 20


def test_a_tree_that_is_resumed_ends_its_paths_alike() -> None:
    whole, _ = grow(within(22))
    for cut in (3, 9, 20):
        rng = random.Random(cut)
        part, _ = grow(within(22), rng=rng, most=cut)
        resumed, _ = grow(within(22), tree=survivors(part.tree, rng), rng=rng)
        assert set(resumed.tree.segments) == set(whole.tree.segments)
        assert resumed.leaves == whole.leaves and texts(resumed) == texts(whole)


def test_the_length_is_a_part_of_the_spec() -> None:
    spec = EnvironmentSpec(name="calculator", longest_path=512)
    written = GenerateSpec(name="iid", max_new_tokens=8, environment=spec).to_json()
    read = GenerateSpec.from_json(written).environment
    assert read == spec and Turns(8, "?", longest_path=512).fills(512)
    assert not Turns(8, "?").fills(10**9), "without a known length there is none"
