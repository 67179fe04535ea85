"""Texts of joined nodes are decoded from the tokens by the store (ADR 051)."""

import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models

from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import members, runs
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from tests.treestore.forge import World

_WORDS = (
    Tokenizer(models.WordLevel({f"w{n}": n for n in range(100)}, unk_token="w0")).to_str().encode()
)


def _world(make_world, tokenizer: bytes = _WORDS) -> World:
    world: World = make_world()
    world.database.transact(runs.take_gateway_epoch)
    request = rs.PutRunRequest(
        run=world.forge.run(), request_id="first", gateway_epoch=1, tokenizer=tokenizer
    )
    world.database.transact(lambda c: runs.put(c, request, world.now(), world.settings))
    return world


def _grow(world: World, ordinal: int) -> tuple[str, list[str], str]:
    """Grow a tree whose node lies about its texts; return the stored texts of its leaf and
    segments, and the text for scorers.
    """
    spec = world.forge.spec(ordinal)
    world.open(spec)
    root = world.forge.root(spec)
    first = world.forge.child(root, text="a lie")
    last = world.forge.child(first, 1, fork=2, text="the right answer is 42")
    world.ingest(world.forge.segments(root, first))
    world.ingest(
        world.forge.segments(last),
        world.forge.leaf(last, end=3, completion="the right answer is 42"),
    )
    key = ts.LeafKey(
        tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=last.id, end=3), claim_epoch=1
    )
    (transcript,) = world.database.query(lambda c: transcripts.read(c, [key]))
    segments = sorted(row.text for row in world.rows(schema.segments, tree_id=spec.tree_id))
    return (
        world.one(schema.leaves, tree_id=spec.tree_id).completion,
        segments,
        transcript.completion,
    )


def test_the_texts_of_a_run_that_a_node_joined_are_decoded_from_its_tokens(make_world) -> None:
    world = _world(make_world)
    leaf_text, _, transcript = _grow(world, 0)
    assert leaf_text == transcript == "the right answer is 42"  # of our own nodes alone
    member = rs.Member(node_id="stranger", run_id=world.forge.run_id, joined=True)
    world.database.transact(
        lambda c: members.put(c, rs.PutMemberRequest(member=member), world.now())
    )
    leaf_text, segments, transcript = _grow(world, 1)
    assert (
        leaf_text == transcript == "w3 w4 w12 w13 w14"
    )  # two tokens of the first, three of the last, none of the prompt
    assert segments == ["w0 w1 w2", "w12 w13 w14 w15", "w3 w4 w5 w6"]


def test_a_tokenizer_that_cannot_be_read_is_refused_and_equal_ones_are_kept_once(
    make_world,
) -> None:
    world = _world(make_world)
    assert len(world.rows(schema.tokenizers)) == 1
    other = rs.PutRunRequest(
        run=rs.Run(run_id="other"), request_id="2", gateway_epoch=1, tokenizer=_WORDS
    )
    world.database.transact(lambda c: runs.put(c, other, world.now(), world.settings))
    assert len(world.rows(schema.tokenizers)) == 1
    bad = rs.PutRunRequest(
        run=rs.Run(run_id="bad"), request_id="3", gateway_epoch=1, tokenizer=b'{"model": 1}'
    )
    with pytest.raises(InvalidInput, match=r"tokenizer\.json cannot be read"):
        world.database.transact(lambda c: runs.put(c, bad, world.now(), world.settings))


def test_the_store_loads_no_model_library() -> None:
    code = (
        "import sys, services.treestore.service;"
        " print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
