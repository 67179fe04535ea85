"""Forced tokens: what an engine returns becomes a FORCED segment and its continuation; either may come alone."""

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
    """One branch that begins with two forced tokens and asks for signals."""

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
    given = replace(spec(IID, {"width": 1}, 9), policy=Forcing(), min_step=4)
    return Grower(given, tree or Tree(given.tree_id), engine().tokenizer, "n")


def answer(request: Request, tokens: int, finish: Finish) -> Sampled:
    """What an engine returns: `tokens` in all, the forced ones first."""
    lp = -np.arange(1, tokens + 1, dtype=np.float32)
    top = Signals(
        np.arange(2 * tokens).reshape(tokens, 2), -np.ones((tokens, 2)), np.full(tokens, 0.5)
    )
    ids = np.array([*request.forced, 1, 2, 3], np.int32)[:tokens]
    return Sampled(
        request.key, ids, lp, finish, POLICY, entropies_T=lp + 9, cached_tokens=5, signals=top
    )


def test_forced_tokens_are_a_segment_of_their_own() -> None:
    one = grower()
    (request,) = one.start().requests
    assert request.forced == FORCED and request.signals == Wanted(2, 2)
    step = one.ended([answer(request, 5, Finish.BOUNDARY)])
    forced, after = step.segments
    assert (forced.kind, forced.origin, forced.finish) == (
        Kind.FORCED,
        Origin.BRANCH,
        Finish.BOUNDARY,
    )
    assert forced.tokens_T.tolist() == [7, 9] and forced.logprobs_T.tolist() == [-1, -2]
    assert forced.sampled_logprobs_T.tolist() == [0, 0] and forced.policy == POLICY.digest
    assert (after.parent, after.fork, after.ordinal, after.kind) == (forced.id, 2, 0, Kind.POLICY)
    assert after.tokens_T.tolist() == [1, 2, 3] and not len(after.sampled_logprobs_T)
    assert after.signals.top_ids_T_K.tolist() == [
        [4, 5],
        [6, 7],
        [8, 9],
    ] and after.entropies_T.tolist() == [6, 5, 4]
    assert (forced.cached_tokens, after.cached_tokens) == (5, len(one.tree.root) + 2)
    assert step.grown == (Leaf(after.id, 3),)
    for segment in step.segments:
        again = segments.segment_from_wire(segments.segment_to_wire(segment))
        assert again.id == segment.id
        for name in ("top_ids_T_K", "top_logprobs_T_K", "semantic_T"):
            assert (
                getattr(again.signals, name).tobytes() == getattr(segment.signals, name).tobytes()
            )


@pytest.mark.parametrize("tokens", [2, 3])
def test_what_was_cut_goes_on_where_it_stopped(tokens: int) -> None:
    one = grower()
    (request,) = one.start().requests
    step = one.ended([answer(request, tokens, Finish.ABORTED)])
    (rest,) = step.requests
    assert len(step.segments) == tokens - 1 and rest.forced == () and rest.signals == Wanted(2, 2)
    assert rest.sampling.max_new_tokens == 3 - (tokens - 2)
    assert rest.prefix_P[-tokens:].tolist() == [7, 9, 1][:tokens]
    done = one.ended([replace(answer(rest, 2, Finish.BOUNDARY), signals=Signals())])
    assert done.grown is not None and len(done.segments) == 1


def test_what_was_cut_before_its_forced_tokens_were_through_is_asked_for_again() -> None:
    one = grower()
    (request,) = one.start().requests
    step = one.ended([replace(answer(request, 0, Finish.ABORTED), signals=Signals())])
    assert not step.segments and [r.forced for r in step.requests] == [FORCED]


def test_a_tree_whose_store_has_only_the_forced_segment_asks_for_the_rest() -> None:
    one = grower()
    (request,) = one.start().requests
    forced, _ = one.ended([answer(request, 5, Finish.BOUNDARY)]).segments
    root = one.tree.root
    assert root is not None
    again = grower(Tree(root.tree_id, [root, forced]))
    (rest,) = again.start().requests
    assert (
        rest.prefix_P[-2:].tolist() == [7, 9]
        and rest.sampling.max_new_tokens == 3
        and not rest.forced
    )


def test_plans_with_forced_tokens_are_logged_and_made_again() -> None:
    one = grower()
    first = one.start()
    second = one.ended([answer(first.requests[0], 5, Finish.BOUNDARY)])
    records = [*first.plans, *second.plans]
    assert (records[0].expansions[0].forced, records[0].expansions[0].top) == (list(FORCED), 2)
    digests = [view_digest.digest(view) for view in plan_log.views(one.spec, one.tree, records)]
    assert digests == [r.view_digest for r in records]


def test_nothing_follows_a_forced_end() -> None:
    one = grower()
    one.tokenizer.eos = frozenset({FORCED[-1]})
    (request,) = one.start().requests
    assert request.sampling.max_new_tokens == 1
    step = one.ended([answer(request, 3, Finish.BOUNDARY)])
    (forced,) = step.segments
    assert (forced.kind, forced.finish) == (
        Kind.FORCED,
        Finish.STOP,
    ) and forced.tokens_T.tolist() == [*FORCED]
    assert step.grown == (Leaf(forced.id, 2),)
