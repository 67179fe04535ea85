"""Forced tokens: a sample becomes a FORCED segment and its continuation; either may come alone."""

from dataclasses import replace

import numpy as np
import pytest

from banyan.plugins import Branch, Expansion, GrowthBudget, GrowthView, LeafMark, Plan
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Kind, Origin
from banyan.signals import Signals, Wanted
from banyan.tree import Leaf, Tree
from banyan.wire import segments
from methods.generate.cuts import continuations, run_at
from services.rollout.engines.port import Request, Sampled
from services.rollout.growth import plan_log, view_digest
from services.rollout.growth.grower import Grower
from tests.rollout.growing import IID, engine, spec

FORCED = (7, 9)
POLICY = PolicyVersion(1, 2, b"p" * 32)


class Forcing:
    """A tree policy of one branch, which begins with two forced tokens and asks for signals."""

    width = 1

    def plan(self, view: GrowthView, room: GrowthBudget, rng: object) -> Plan:
        place = Branch(view.root.id, len(view.root), 0)
        run = run_at(view, place)
        if run is None:
            first = Expansion(
                place, replace(view.sampling, max_new_tokens=3), FORCED, Wanted(top=2, semantic=2)
            )
            return Plan((first, *continuations(view)))
        return Plan(leaves=(LeafMark(Leaf(run.last.id, len(run.last)), "end"),), done=True)


def grower(tree: Tree | None = None) -> Grower:
    assignment = replace(spec(IID, {"width": 1}, 9), tree_policy=Forcing(), min_step=4)
    return Grower(assignment, tree or Tree(assignment.tree_id), engine().tokenizer, "n")


def answer(request: Request, tokens: int, finish: Finish) -> Sampled:
    """Return a sample of `tokens` tokens in all, the forced ones first."""
    lp = -np.arange(1, tokens + 1, dtype=np.float32)
    top = Signals(
        np.arange(2 * tokens).reshape(tokens, 2), -np.ones((tokens, 2)), np.full(tokens, 0.5)
    )
    ids = np.array([*request.forced, 1, 2, 3], np.int32)[:tokens]
    return Sampled(
        request.key, ids, lp, finish, POLICY, entropies_T=lp + 9, cached_tokens=5, signals=top
    )


def test_forced_tokens_are_a_segment_of_their_own() -> None:
    growing = grower()
    (request,) = growing.start().requests
    assert request.forced == FORCED and request.signals == Wanted(2, 2)
    step = growing.ended([answer(request, 5, Finish.BOUNDARY)])
    forced, after = step.segments
    assert (forced.kind, forced.origin) == (Kind.FORCED, Origin.BRANCH)
    assert forced.finish is Finish.BOUNDARY
    assert forced.tokens_T.tolist() == [7, 9] and forced.logprobs_T.tolist() == [-1, -2]
    assert forced.sampled_logprobs_T.tolist() == [0, 0] and forced.policy == POLICY.digest
    assert (after.parent, after.fork, after.ordinal, after.kind) == (forced.id, 2, 0, Kind.POLICY)
    assert after.tokens_T.tolist() == [1, 2, 3] and not len(after.sampled_logprobs_T)
    assert after.signals.top_ids_T_K.tolist() == [[4, 5], [6, 7], [8, 9]]
    assert after.entropies_T.tolist() == [6, 5, 4]
    assert (forced.cached_tokens, after.cached_tokens) == (5, len(growing.tree.root) + 2)
    assert step.grown == (Leaf(after.id, 3),)
    for segment in step.segments:
        read = segments.segment_from_wire(segments.segment_to_wire(segment))
        assert read.id == segment.id
        for name in ("top_ids_T_K", "top_logprobs_T_K", "semantic_T"):
            before, after_wire = getattr(segment.signals, name), getattr(read.signals, name)
            assert after_wire.tobytes() == before.tobytes()


@pytest.mark.parametrize("tokens", [2, 3])
def test_what_was_cut_goes_on_where_it_stopped(tokens: int) -> None:
    growing = grower()
    (request,) = growing.start().requests
    step = growing.ended([answer(request, tokens, Finish.ABORTED)])
    (rest,) = step.requests
    assert len(step.segments) == tokens - 1 and rest.forced == () and rest.signals == Wanted(2, 2)
    assert rest.sampling.max_new_tokens == 3 - (tokens - 2)
    assert rest.prefix_P[-tokens:].tolist() == [7, 9, 1][:tokens]
    done = growing.ended([replace(answer(rest, 2, Finish.BOUNDARY), signals=Signals())])
    assert done.grown is not None and len(done.segments) == 1


def test_what_was_cut_before_its_forced_tokens_were_through_is_asked_for_again() -> None:
    growing = grower()
    (request,) = growing.start().requests
    step = growing.ended([replace(answer(request, 0, Finish.ABORTED), signals=Signals())])
    assert not step.segments and [r.forced for r in step.requests] == [FORCED]


def test_a_tree_whose_store_has_only_the_forced_segment_asks_for_the_rest() -> None:
    growing = grower()
    (request,) = growing.start().requests
    forced, _ = growing.ended([answer(request, 5, Finish.BOUNDARY)]).segments
    root = growing.tree.root
    assert root is not None
    resumed = grower(Tree(root.tree_id, [root, forced]))
    (rest,) = resumed.start().requests
    assert rest.prefix_P[-2:].tolist() == [7, 9]
    assert rest.sampling.max_new_tokens == 3 and not rest.forced


def test_plans_with_forced_tokens_are_logged_and_made_again() -> None:
    growing = grower()
    first = growing.start()
    second = growing.ended([answer(first.requests[0], 5, Finish.BOUNDARY)])
    records = [*first.plans, *second.plans]
    assert (records[0].expansions[0].forced, records[0].expansions[0].top) == (list(FORCED), 2)
    digests = [
        view_digest.digest(view) for view in plan_log.views(growing.spec, growing.tree, records)
    ]
    assert digests == [r.view_digest for r in records]


def test_nothing_follows_a_forced_end() -> None:
    growing = grower()
    growing.tokenizer.eos = frozenset({FORCED[-1]})
    (request,) = growing.start().requests
    assert request.sampling.max_new_tokens == 1
    step = growing.ended([answer(request, 3, Finish.BOUNDARY)])
    (forced,) = step.segments
    assert (forced.kind, forced.finish) == (Kind.FORCED, Finish.STOP)
    assert forced.tokens_T.tolist() == [*FORCED]
    assert step.grown == (Leaf(forced.id, 2),)
