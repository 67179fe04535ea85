"""Answers in a run that a node joined: their tokens, ends and calls are what the store makes them.

A token is a byte here, and the model has no template: an answer stands between two line ends.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.receipts import Receipt
from banyan.environments.renderers import ModelWords, RendererSpec
from banyan.errors import Refused
from banyan.segment import Finish, IntTokens, Kind, Sampling, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.treestore.control import members, runs
from services.treestore.lifecycle import actions, claim_batch, claims
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.storage.tokens import tokenizers
from services.treestore.training import policies
from tests.banyan.environments.test_observation import SEEN
from tests.system.tiny import byte_tokenizer
from tests.treestore.forge import POLICY, World

WORDS = ModelWords(template=False, eos="<end>")
ROOM = 64


class Joined(World):
    """A store with a run of a byte model that a node joined."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Database(f"sqlite:///{folder / 's.sqlite'}").open())
        byte_tokenizer(folder)
        self.bytes = (folder / "tokenizer.json").read_bytes()

    def begin(self, *, joined: bool = True, longest_path: int = 0) -> "Joined":
        self.database.transact(runs.take_gateway_epoch)
        run = self.forge.run(vocabulary=300, longest_path=longest_path)
        request = rs.PutRunRequest(run=run, request_id="1", gateway_epoch=1, tokenizer=self.bytes)
        self.database.transact(lambda c: runs.put(c, request, self.now(), self.settings))
        epoch = rs.TakeLearnerEpochRequest(run_id=self.forge.run_id, learner_id="learner-1")
        self.database.transact(lambda c: policies.take_epoch(c, epoch))
        node = rs.Member(node_id="node-1", run_id=self.forge.run_id, joined=joined)
        put = rs.PutMemberRequest(member=node)
        self.database.transact(lambda c: members.put(c, put, self.now()))
        policy = _policy(self.forge.run_id)
        self.database.transact(lambda c: policies.put(c, policy, self.now(), self.settings))
        return self

    def tokens(self, text: str) -> IntTokens:
        return np.array(Tokenizer.from_str(self.bytes.decode()).encode(text).ids, np.int32)

    def said(self, parent: Segment, text: str, finish: Finish, ordinal: int = 0) -> Segment:
        """Return a segment of the policy, whose node claims another text for it."""
        tokens = self.tokens(text)
        return self.forge.child(
            parent,
            ordinal,
            tokens_T=tokens,
            logprobs_T=-np.ones(len(tokens), np.float32),
            sampling=Sampling(max_new_tokens=ROOM),
            policy_epoch=1,
            finish=finish,
            text="a lie",
        )

    def answer(self, action: Segment, text: str, **more: Any) -> Segment:
        """Return the answer of a verifier that a node rendered; `more` are its lies."""
        seen = replace(SEEN, action=action.id, shown=blake(text.encode()))
        seen = replace(seen, done=more.pop("done", False))
        mac = receipts.mac(self.settings.receipt_key, self.forge.run_id, action.tree_id, seen)
        fields: dict[str, Any] = {
            "kind": Kind.TOOL,
            "receipt": Receipt(seen, mac, call="a lie"),
            "text": text,
            "tokens_T": self.tokens(f"\n{text}\n"),
            "logprobs_T": [],
            "policy": b"",
            "finish": Finish.BOUNDARY,
        }
        return self.forge.child(action, **{**fields, **more})

    def refused(self) -> list[str]:
        return [row.reason for row in self.rows(schema.refused)]

    def refusal(self, tree_id: bytes, node: str) -> str:
        """Return the reason for which a node may not act in a tree; empty if it may."""
        try:
            self.database.query(lambda c: claims.check_holder(c, tree_id, node))
        except Refused as error:
            return error.reason
        return ""

    def read(self, tree_id: bytes, action: bytes, node: str = "node-1") -> ts.WayOutcome:
        run_id = self.forge.run_id if node else ""
        key = ts.ActionKey(tree_id=tree_id, epoch=1, action=action, run_id=run_id, node_id=node)
        request = ts.ReadActionsRequest(actions=[key])
        (outcome,) = self.database.query(lambda c: actions.read(c, request, self.now())).outcomes
        return outcome


def _policy(run_id: str) -> rs.PutPolicyRequest:
    ref = tree_pb2.PolicyRef(learner_epoch=1, step=0, digest=POLICY)
    return rs.PutPolicyRequest(policy=events_pb2.PolicyPublished(run_id=run_id, policy=ref))


def spec_of(world: Joined, **more: Any) -> tree_pb2.TreeSpec:
    environment = EnvironmentSpec(name="calculator", **{"words": WORDS, **more})
    generate = GenerateSpec(name="iid", max_new_tokens=ROOM, environment=environment)
    return world.forge.spec(generate_json=generate.to_json())


def acted(world: Joined, *texts: str, **more: Any) -> Segment:
    """Claim a tree and store a path of an action, cut into these texts."""
    spec = spec_of(world, **more)
    world.ingest(world.forge.opened(spec))
    world.claim(spec.tree_id)
    path = [world.forge.root(spec)]
    for text in texts:
        finish = Finish.TOOL_CALL if text is texts[-1] else Finish.BOUNDARY
        path.append(world.said(path[-1], text, finish))
    world.ingest(world.forge.segments(*path))
    assert not world.refused()
    return path[-1]


@pytest.fixture
def joined(tmp_path: Path) -> Joined:
    return Joined(tmp_path).begin()


def test_an_answer_whose_tokens_are_those_of_its_text_is_a_fact(joined: Joined) -> None:
    action = acted(joined, "<calc>6*", "7</calc>")
    tool = joined.answer(action, "42")
    end = joined.said(tool, "it is 42", Finish.STOP)
    joined.ingest(joined.forge.segments(tool, end), joined.forge.leaf(end, completion="a lie"))
    assert not joined.refused()
    stored = {row.id: row for row in joined.rows(schema.segments)}
    assert stored[tool.id].text == "42" and stored[end.id].text == "it is 42"
    call = tree_pb2.Receipt.FromString(stored[tool.id].receipt).call
    assert call == "<calc>6*7</calc>", "the whole action, from its tokens, and nobody's word"
    key = ts.LeafKey(tree_id=end.tree_id, leaf={"segment": end.id, "end": len(end)}, claim_epoch=1)
    (leaf,) = joined.database.query(lambda c: transcripts.read(c, [key]))
    assert leaf.completion == "it is 42", "what stands behind the last answer"
    assert leaf.turns[0].receipt.call == call and leaf.turns[0].answer == "42"


LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "other tokens": ("ANSWER_TOKENS_FALSE", {"tokens_T": np.array([2, 3], np.int32)}),
    "no tokens": ("EMPTY_SEGMENT", {"tokens_T": np.zeros(0, np.int32)}),
    "done without the receipt": ("ANSWER_END_FALSE", {"finish": Finish.STOP}),
    "goes on behind the end": ("ANSWER_END_FALSE", {"done": True}),
    "ends early": ("ANSWER_END_FALSE", {"finish": Finish.LENGTH}),
}


@pytest.mark.parametrize(("reason", "lie"), LIES.values(), ids=LIES)
def test_tokens_and_ends_that_are_not_of_the_receipt_are_refused(
    joined: Joined, reason: str, lie: dict[str, Any]
) -> None:
    action = acted(joined, "<calc>6*7</calc>")
    forged = joined.answer(action, "42", **lie)
    below = joined.said(forged, "so", Finish.STOP)
    joined.ingest(joined.forge.segments(forged, below))
    assert joined.refused() == [reason, "PARENT_REFUSED"], "and whatever stands below"
    joined.ingest(joined.forge.segments(joined.answer(action, "42")))
    assert len(joined.refused()) == 2, "the true answer has its place still"


@pytest.mark.parametrize("parts", [slice(0, None), slice(1, None), slice(2, None)])
def test_a_path_is_found_whichever_parts_of_it_come_in_one_message(
    joined: Joined, parts: slice
) -> None:
    """The rest is in the database already; an answer may also come before its action."""
    first = acted(joined, "<calc>1</calc>")
    answered = joined.answer(first, "1")
    second = joined.said(answered, "<calc>2</calc>", Finish.TOOL_CALL)
    last = joined.answer(second, "2")
    path = [answered, second, last]
    for segment in path[: parts.start]:
        joined.ingest(joined.forge.segments(segment))
    rest = path[parts]
    joined.ingest(joined.forge.segments(*rest[::-1]))
    assert not joined.refused() and not joined.rows(schema.parked)
    stored = {row.id: row for row in joined.rows(schema.segments)}
    assert tree_pb2.Receipt.FromString(stored[last.id].receipt).call == "<calc>2</calc>"


def test_an_answer_may_be_cut_where_the_model_ends_and_nowhere_else(tmp_path: Path) -> None:
    world = Joined(tmp_path).begin(longest_path=30)
    # 3 tokens of the prompt and 16 of the action
    action = acted(world, "<calc>6*7</calc>", longest_path=30)
    whole = world.tokens("\n123456789012\n")
    short = world.answer(action, "123456789012", tokens_T=whole[:10])
    world.ingest(world.forge.segments(short))
    assert world.refused() == ["ANSWER_TOKENS_FALSE"]
    for goes_on in (Finish.BOUNDARY, Finish.TOOL_CALL):
        other = world.answer(action, "123456789012", tokens_T=whole[:11], finish=goes_on)
        world.ingest(world.forge.segments(other))
    assert world.refused()[1:] == ["ANSWER_END_FALSE"] * 2
    cut = world.answer(action, "123456789012", tokens_T=whole[:11], finish=Finish.LENGTH)
    world.ingest(world.forge.segments(cut))
    assert len(world.refused()) == 3 and cut.id in {s.id for s in world.rows(schema.segments)}


def test_the_model_ends_where_the_spec_of_the_tree_says(tmp_path: Path) -> None:
    """It is what the nodes know, though a gateway wrote it that could not read the model."""
    world = Joined(tmp_path).begin(longest_path=30)
    action = acted(world, "<calc>6*7</calc>")
    world.ingest(world.forge.segments(world.answer(action, "123456789")))
    assert not world.refused(), "whole, with the last token that there is room for"


def test_an_answer_behind_which_nothing_can_be_said_ends_its_path(joined: Joined) -> None:
    action = acted(joined, f"<calc>{'1' * (ROOM - 13)}</calc>")
    assert len(action) == ROOM
    for finish in (Finish.BOUNDARY, Finish.LENGTH):
        joined.ingest(joined.forge.segments(joined.answer(action, "1", finish=finish)))
    assert joined.refused() == ["ANSWER_END_FALSE"], "the second is a fact"


def test_each_tokenizer_renders_for_its_own_runs(joined: Joined) -> None:
    other = json.loads(joined.bytes)
    vocabulary = other["model"]["vocab"]
    vocabulary["4"], vocabulary["2"] = vocabulary["2"], vocabulary["4"]
    answers: list[Any] = []
    for data in (joined.bytes, json.dumps(other).encode()):
        digest = joined.database.transact(partial(tokenizers.put, data=data))
        assert digest is not None
        asked = partial(tokenizers.bridge, digest=digest, spec=RendererSpec(), words=WORDS)
        answers.append(joined.database.query(asked).bridge([], [], "42"))
    line, four, two, _ = answers[0]
    assert answers == [[line, four, two, line], [line, two, four, line]]


@pytest.mark.parametrize(
    "more",
    [{"words": None}, {"renderer": RendererSpec("qwen3", "0.0.0")}],
    ids=["no words", "another version"],
)
def test_where_nothing_renders_answers_none_is_taken(
    joined: Joined, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    action = acted(joined, "<calc>6*7</calc>", **more)
    joined.ingest(joined.forge.segments(joined.answer(action, "42")))
    assert joined.refused() == ["SPEC_UNUSABLE"]


def test_a_run_that_nobody_joined_takes_its_own_nodes_word(tmp_path: Path) -> None:
    world = Joined(tmp_path).begin(joined=False)
    action = acted(world, "<calc>6*7</calc>")
    tool = world.answer(action, "42", tokens_T=np.array([2, 3], np.int32))
    world.ingest(world.forge.segments(tool))
    way = world.read(action.tree_id, action.id, node="").way
    assert not world.refused() and way.run_id and not way.HasField("call")


def test_the_store_says_what_an_action_is_to_its_node(joined: Joined) -> None:
    action = acted(joined, "<calc>6*", "7</calc>")
    tree_id = action.tree_id
    assert joined.read(tree_id, action.id).way.call == "<calc>6*7</calc>"
    assert joined.read(tree_id, action.id, node="node-2").refused == "NOT_ITS_CLAIM"
    assert joined.read(tree_id, action.id, node="").way.call == "<calc>6*7</calc>", "to ours, too"
    cut = joined.read(tree_id, action.parent)
    assert cut.refused == "REFUSED" and "ends no action" in cut.detail


def test_nodes_get_no_row_and_no_tree_of_another(joined: Joined) -> None:
    spec = spec_of(joined)
    joined.ingest(joined.forge.opened(spec))
    request = ts.ClaimTreeRequest(tree_id=spec.tree_id, node_id="node-1", ticket=1)
    answer = joined.database.transact(
        lambda c: claim_batch.claim_one(c, request, joined.now(), joined.settings)
    )
    assert answer.epoch == 1 and not answer.tree.spec.row_json
    assert answer.tree.spec.messages_json, "the prompt is no secret"
    assert joined.refusal(spec.tree_id, "node-1") == ""
    for other in ("node-2", "node"):
        assert joined.refusal(spec.tree_id, other) == "NOT_ITS_CLAIM"
    joined.return_tree(spec.tree_id, 1, "drain", joined=True)
    assert joined.refusal(spec.tree_id, "node-1") == "NOT_ITS_CLAIM"


def test_leaves_inside_an_answer_say_nothing(joined: Joined) -> None:
    action = acted(joined, "<calc>6*7</calc>")
    tool = joined.answer(action, "42", done=True, finish=Finish.STOP)
    joined.ingest(joined.forge.segments(tool), joined.forge.leaf(tool, completion="a lie"))
    assert not joined.refused()
    leaf = Leaf(tool.id, len(tool))
    (row,) = [r for r in joined.rows(schema.leaves) if Leaf(r.segment, r.end) == leaf]
    assert row.completion == ""
