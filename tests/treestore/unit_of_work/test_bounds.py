"""Segments are checked against the model, the spec and the published policies (ADR 051)."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.receipts import Receipt
from banyan.segment import Finish, Kind, Origin, Sampling, Segment
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import members, runs
from services.treestore.storage import schema
from services.treestore.training import policies
from services.treestore.unit_of_work import segment_bounds
from services.treestore.unit_of_work.segment_bounds import Limits
from tests.banyan.environments.test_observation import SEEN
from tests.treestore.forge import POLICY, World

_SEED, _PROMPT = 7, np.arange(3, dtype=np.int32)
_GENERATE = json.dumps({"name": "iid", "max_new_tokens": 8, "temperature": 0.7, "stop": ["###"]})
_SAMPLING = Sampling(temperature=0.7, max_new_tokens=8, stop=("###",), seed=_SEED)


@pytest.fixture
def bounded(make_world) -> World:
    """Return a world whose run has a model of 100 tokens and paths of 16, with one policy."""
    world: World = make_world()
    world.database.transact(runs.take_gateway_epoch)
    run = world.forge.run(vocabulary=100, longest_path=16)
    request = rs.PutRunRequest(run=run, request_id="first", gateway_epoch=1)
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    epoch = rs.TakeLearnerEpochRequest(run_id=run.run_id, learner_id="learner-1")
    world.database.transact(lambda c: policies.take_epoch(c, epoch))
    put = rs.PutPolicyRequest(
        policy=events_pb2.PolicyPublished(
            run_id=run.run_id, policy=tree_pb2.PolicyRef(learner_epoch=1, step=0, digest=POLICY)
        )
    )
    world.database.transact(lambda c: policies.put(c, put, world.now(), world.settings))
    return world


def _spec(world: World, **more: Any) -> tree_pb2.TreeSpec:
    prompt = {"prompt_tokens": 3, "prompt_digest": blake(_PROMPT.astype("<i4").tobytes())}
    return world.forge.spec(**{"generate_json": _GENERATE, "seed": _SEED, **prompt, **more})


def _child(world: World, root: Segment, ordinal: int = 0, **more: Any) -> Segment:
    return world.forge.child(root, ordinal, **{"sampling": _SAMPLING, "policy_epoch": 1, **more})


def test_a_run_keeps_what_its_model_bounds(bounded: World) -> None:
    result = bounded.database.query(lambda c: runs.read(c, bounded.forge.run_id, 0)).run
    assert (result.vocabulary, result.longest_path, result.joined) == (100, 16, False)


def _join(world: World) -> None:
    member = rs.Member(node_id="stranger", run_id=world.forge.run_id, joined=True)
    world.database.transact(
        lambda c: members.put(c, rs.PutMemberRequest(member=member), world.now())
    )


_T = np.array([1, 2, 3, 4], np.int32)
_LONG = np.arange(9, dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens_T": np.array([1, 2, 2**30, 4], np.int32)}, "TOKEN_OUT_OF_VOCABULARY"),
        ({"tokens_T": np.array([1, 2, 100, 4], np.int32)}, "TOKEN_OUT_OF_VOCABULARY"),
        ({"tokens_T": np.array([1, -1, 3, 4], np.int32)}, "TOKEN_OUT_OF_VOCABULARY"),
        ({"tokens_T": _T[:0], "logprobs_T": []}, "EMPTY_SEGMENT"),
        ({"tokens_T": _LONG, "logprobs_T": -np.ones(9, np.float32)}, "PATH_TOO_LONG"),
        ({"logprobs_T": np.array([-1, 0.5, -1, -1], np.float32)}, "LOGPROB_ABOVE_0"),
        ({"sampled_logprobs_T": np.array([-1, 0.5, -1, -1], np.float32)}, "LOGPROB_ABOVE_0"),
        (
            {"sampling": Sampling(temperature=1.5, max_new_tokens=8, stop=("###",), seed=_SEED)},
            "SAMPLING_NOT_ASKED",
        ),
        (
            {"sampling": Sampling(temperature=0.7, top_p=0.5, max_new_tokens=8, seed=_SEED)},
            "SAMPLING_NOT_ASKED",
        ),
        (
            {"sampling": Sampling(temperature=0.7, max_new_tokens=8, stop=("###",), seed=8)},
            "SAMPLING_NOT_ASKED",
        ),
        (
            {"sampling": Sampling(temperature=0.7, max_new_tokens=8, stop=(), seed=_SEED)},
            "SAMPLING_NOT_ASKED",
        ),
        (
            {"sampling": Sampling(temperature=0.7, max_new_tokens=3, stop=("###",), seed=_SEED)},
            "SAMPLING_NOT_ASKED",
        ),
        ({"policy": blake(b"of nobody")}, "POLICY_UNKNOWN"),
        ({"policy_step": 3}, "POLICY_UNKNOWN"),
        ({"policy_epoch": 2}, "POLICY_UNKNOWN"),
        (
            {"kind": Kind.FORCED, "origin": Origin.BRANCH, "tokens_T": [2**30] * 4},
            "TOKEN_OUT_OF_VOCABULARY",
        ),
        (
            {"kind": Kind.TOOL, "tokens_T": [2**30], "logprobs_T": [], "policy": b""},
            "TOKEN_OUT_OF_VOCABULARY",
        ),
    ],
)
def test_what_breaks_a_bound_is_refused_by_name_and_never_stored(
    bounded: World, change: dict, reason: str
) -> None:
    spec = _spec(bounded)
    bounded.open(spec)
    root = bounded.forge.root(spec)
    bad = _child(bounded, root, **change)
    after = _child(bounded, bad, tokens_T=_T[:1], logprobs_T=-np.ones(1, np.float32), fork=len(bad))
    good = _child(bounded, root, 1)
    bounded.ingest(bounded.forge.segments(root, bad, good))
    bounded.ingest(bounded.forge.segments(after))
    refused = [(bytes(row.segment), row.reason) for row in bounded.rows(schema.refused)]
    assert refused[0] == (bad.id, reason)
    assert {bytes(row.id) for row in bounded.rows(schema.segments)} == {root.id, good.id}
    if reason in segment_bounds.BROKEN:
        assert refused[1:] == [(after.id, "PARENT_REFUSED")] and not bounded.rows(schema.parked)


def test_forced_and_tool_segments_need_neither_policy_nor_sampling(bounded: World) -> None:
    spec = _spec(bounded)
    bounded.open(spec)
    root = bounded.forge.root(spec)
    nothing = {"policy": b"", "policy_epoch": 0, "sampling": Sampling()}
    forced = _child(bounded, root, 0, kind=Kind.FORCED, origin=Origin.TEACHER, **nothing)
    action = _child(bounded, root, 1, finish=Finish.TOOL_CALL)
    tool = _answer(bounded, action, **nothing)
    greedy = _child(bounded, root, 2, sampling=Sampling(0.0, 1.0, 1, 8, ("###",), _SEED))
    bounded.ingest(bounded.forge.segments(root, forced, action, tool, greedy))
    assert len(bounded.rows(schema.segments)) == 5 and not bounded.rows(schema.refused)


def _answer(world: World, action: Segment, **fields: Any) -> Segment:
    """Return an answer to an action, with its receipt."""
    seen = replace(SEEN, action=action.id, shown=blake(b"408"))
    mac = receipts.mac(world.settings.receipt_key, world.forge.run_id, action.tree_id, seen)
    return _child(
        world,
        action,
        fork=len(action),
        kind=Kind.TOOL,
        logprobs_T=[],
        text="408",
        finish=Finish.BOUNDARY,
        receipt=Receipt(seen, mac),
        **fields,
    )


def test_a_path_holds_what_its_model_takes(bounded: World) -> None:
    """It holds 16 tokens with the prompt of 3; a spec that asks for more does not change that."""
    spec = _spec(bounded, generate_json=_GENERATE.replace("8", "64"))
    bounded.open(spec)
    root = bounded.forge.root(spec)
    first = _child(bounded, root, length=8)
    fits, more = _child(bounded, first, 0, length=5), _child(bounded, first, 1, length=6)
    bounded.ingest(bounded.forge.segments(root, first, fits, more))
    assert bounded.one(schema.refused).reason == "PATH_TOO_LONG"
    assert {bytes(row.id) for row in bounded.rows(schema.segments)} == {root.id, first.id, fits.id}


def test_a_prompt_is_that_of_the_gateway(bounded: World) -> None:
    spec = _spec(bounded)
    bounded.open(spec)
    assert not bounded.database.query(lambda c: runs.read(c, bounded.forge.run_id, 0)).run.joined
    _join(bounded)
    assert bounded.database.query(lambda c: runs.read(c, bounded.forge.run_id, 0)).run.joined
    other = Segment(
        spec.tree_id, b"", 0, 0, Kind.PROMPT, _PROMPT + 1, text="ask", finish=Finish.STOP
    )
    bounded.ingest(bounded.forge.segments(other))
    assert bounded.one(schema.refused).reason == "PROMPT_NOT_OURS" and not bounded.rows(
        schema.segments
    )
    bounded.ingest(bounded.forge.segments(bounded.forge.root(spec)))
    assert len(bounded.rows(schema.segments)) == 1


def test_tree_policies_of_others_may_draw_otherwise() -> None:
    spec = tree_pb2.TreeSpec(generate_json=_GENERATE.replace("iid", "mine:Own"), seed=_SEED)
    segment = Segment(
        b"t" * 32, b"r" * 32, 3, 0, Kind.POLICY, _T, -np.ones(4, np.float32), policy=POLICY,
        sampling=Sampling(1.5, 0.9, 5, 8, ("###",), _SEED),
    )  # fmt: skip
    assert not segment_bounds.broken_rule(
        Limits(100), segment_bounds.bounds_of(spec), segment, above=None, prompt_tokens=3
    )


@settings(max_examples=200)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8))
def test_ids_that_pass_lie_in_the_vocabulary(tokens: list[int]) -> None:
    segment = Segment(b"t" * 32, b"r" * 32, 3, 0, Kind.TOOL, np.array(tokens, np.int32))
    result = segment_bounds.broken_rule(
        Limits(100),
        segment_bounds.bounds_of(tree_pb2.TreeSpec(generate_json=_GENERATE)),
        segment,
        above=None,
        prompt_tokens=3,
    )
    assert (result == "") == all(0 <= token < 100 for token in tokens)
