"""The mapping of messages to columns: complete on both sides, and lossless."""

import pytest
from sqlalchemy import insert, select

from banyan.v1 import events_pb2, tree_pb2
from services.treestore.queries.trees import BYTES, score_to_wire, segment_to_wire
from services.treestore.storage import mapping, schema
from services.treestore.storage.mapping import MessageMapping
from tests.treestore.forge import World

ALL = [
    mapping.SEGMENT,
    mapping.SCORE,
    mapping.SCORED_LEAF,
    mapping.LEAF_SCORED,
    mapping.RESCORE,
]
SEGMENT = tree_pb2.Segment(
    id=b"i" * 32,
    tree_id=b"t" * 32,
    parent=b"p" * 32,
    fork=1,
    ordinal=2,
    kind=tree_pb2.SEGMENT_KIND_FORCED,
    origin=tree_pb2.SEGMENT_ORIGIN_TEACHER,
    tokens=b"1234",
    logprobs=b"5678",
    sampled_logprobs=b"9abc",
    policy=tree_pb2.PolicyRef(learner_epoch=3, step=4, digest=b"d" * 32),
    sampling=tree_pb2.SamplingParams(temperature=0.5, max_new_tokens=7, stop=["."]),
    finish=tree_pb2.SEGMENT_FINISH_STOP,
    producer="node-1",
    text="a word",
    cached_tokens=5,
    entropies=b"ef",
    signals=tree_pb2.TokenSignals(top=1, head=b"gh"),
    receipt=tree_pb2.Receipt(observation=tree_pb2.Observation(environment="e"), mac=b"m"),
)
SCORED = events_pb2.LeafScored(
    run_id="run-1",
    tree_id=b"t" * 32,
    scored=tree_pb2.ScoredLeaf(
        leaf=tree_pb2.LeafRef(segment=b"i" * 32, end=3),
        scorer="number",
        scorer_version="2",
        score=tree_pb2.Score(
            state=tree_pb2.SCORE_STATE_SCORED,
            value=0.5,
            parts={"format": 1.0, "answer": 0.0},
            reason="a reason",
            repair=tree_pb2.Repair(keep=1, text="step", step=2, steps=3),
        ),
    ),
    verifier_id="verifier-1",
    duration_ms=1.5,
)


@pytest.mark.parametrize("mapped", ALL, ids=lambda mapped: mapped.message.DESCRIPTOR.name)
def test_every_field_is_mapped_or_left_out(mapped: MessageMapping) -> None:
    names = [field.name for field in mapped.fields]
    assert len(set(names)) == len(names) and mapped.left_out.isdisjoint(names)
    fields = {field.name for field in mapped.message.DESCRIPTOR.fields}
    assert {*names, *mapped.left_out} == fields


@pytest.mark.parametrize("mapped", [mapping.SEGMENT, mapping.LEAF_SCORED, mapping.RESCORE])
def test_every_column_is_mapped_or_filled_by_the_store(mapped: MessageMapping) -> None:
    assert len(set(mapped.columns)) == len(mapped.columns)
    assert mapped.filled_by_store.isdisjoint(mapped.columns)
    columns = {column.name for column in mapped.table.columns}
    assert {*mapped.columns, *mapped.filled_by_store} == columns


def test_the_examples_have_every_field() -> None:
    for message in (SEGMENT, SCORED, SCORED.scored, SCORED.scored.score):
        left_out = mapping.SCORED_LEAF.left_out if message is SCORED.scored else frozenset()
        names = {field.name for field, _ in message.ListFields()}
        assert names | left_out == {field.name for field in message.DESCRIPTOR.fields}


@pytest.mark.parametrize("message", [SEGMENT, tree_pb2.Segment(id=b"i", policy={}, sampling={})])
def test_a_segment_survives_its_row(world: World, message: tree_pb2.Segment) -> None:
    table = schema.segments
    values = mapping.SEGMENT.to_columns(message)
    world.database.transact(lambda c: c.execute(insert(table).values(values)))
    row = world.database.query(lambda c: c.execute(select(table)).one())
    assert segment_to_wire(row) == message


@pytest.mark.parametrize(
    "message", [SCORED, events_pb2.LeafScored(scored={"leaf": {}, "score": {}})]
)
def test_a_score_survives_its_row(world: World, message: events_pb2.LeafScored) -> None:
    table = schema.scores
    values = mapping.LEAF_SCORED.to_columns(message)
    world.database.transact(lambda c: c.execute(insert(table).values(values)))
    row = world.database.query(lambda c: c.execute(select(table)).one())
    assert score_to_wire(row) == message.scored
    assert (row.tree_id, row.verifier) == (message.tree_id, message.verifier_id)
    assert row.duration_ms == message.duration_ms


@pytest.mark.parametrize(
    "long",
    [
        *({name: b"x" * 4096} for name in ("tokens", "logprobs", "sampled_logprobs", "entropies")),
        {"signals": tree_pb2.TokenSignals(head=b"x" * 4096)},
        {"text": "\N{SNOWMAN}" * 4096},
    ],
    ids=lambda long: next(iter(long)),
)
def test_the_bytes_of_a_segment_in_a_message_are_bounded(
    world: World, long: dict[str, object]
) -> None:
    """By the bound, trees are sent in parts that fit a message."""
    message = tree_pb2.Segment.FromString(SEGMENT.SerializeToString())
    message.MergeFrom(tree_pb2.Segment(**long))  # type: ignore[arg-type]
    values = mapping.SEGMENT.to_columns(message)
    world.database.transact(lambda c: c.execute(insert(schema.segments).values(values)))
    bound = world.database.query(lambda c: c.execute(select(BYTES)).scalar_one())
    assert message.ByteSize() <= bound
