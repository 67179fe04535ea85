"""The mapping between messages and the columns that hold them, for segments and scores.

Each field is listed here once, with its columns: ingest and queries read this list. A new field of
a message needs a column (a migration) and a line here, or a place in `left_out`;
`tests/treestore/storage/test_mapping.py` compares the list with the messages and the tables.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message
from sqlalchemy import Table

from banyan.v1 import events_pb2, tree_pb2
from services.treestore.storage import schema

Values = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedField:
    """A field of a message and the columns that hold it.

    name: field of the message
    columns: columns of the table, in the order of the values
    to_columns: returns the values of the columns, given the message
    from_row: returns the value of the field, given a row; None leaves the field unset
    """

    name: str
    columns: tuple[str, ...]
    to_columns: Callable[[Any], tuple[object, ...]]
    from_row: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class MessageMapping:
    """All fields of a message and all columns of its table.

    message: class of the message
    table: the table whose rows hold it
    fields: the mapped fields
    left_out: fields that no column holds
    filled_by_store: columns that no field fills
    """

    message: type[Message]
    table: Table
    fields: tuple[MappedField, ...]
    left_out: frozenset[str] = frozenset()
    filled_by_store: frozenset[str] = frozenset()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the fields fill."""
        return tuple(column for field in self.fields for column in field.columns)

    def to_columns(self, message: Any) -> Values:
        """Return the values of the columns that the fields of a message fill."""
        return dict(zip(self.columns, self.values(message), strict=True))

    def values(self, message: Any) -> tuple[object, ...]:
        """Return the values that `to_columns` returns, in the order of `columns`."""
        parts = [field.to_columns(message) for field in self.fields]
        return tuple(chain.from_iterable(parts))

    def from_row(self, row: Any) -> Any:
        """Return the message of a row, without the fields that no column holds."""
        return self.message(**{field.name: field.from_row(row) for field in self.fields})


def _plain(name: str, column: str = "") -> MappedField:
    """Map a field to one column that holds its value as it is."""
    get = attrgetter(name)
    return MappedField(
        name=name,
        columns=(column or name,),
        to_columns=lambda message: (get(message),),
        from_row=attrgetter(column or name),
    )


def _enum(name: str) -> MappedField:
    """Map an enum to the column of its number."""
    get = attrgetter(name)
    return MappedField(
        name=name,
        columns=(name,),
        to_columns=lambda message: (int(get(message)),),
        from_row=attrgetter(name),
    )


def _encoded(name: str, message_class: type[Message], *, absent: bytes | None) -> MappedField:
    """Map a message to the column of its bytes, which is `absent` where the field is not set."""
    get = attrgetter(name)

    def to_columns(message: Any) -> tuple[object, ...]:
        return (get(message).SerializeToString() if message.HasField(name) else absent,)

    def from_row(row: Any) -> Message | None:
        data = get(row)
        return message_class.FromString(data) if data else None

    return MappedField(name=name, columns=(name,), to_columns=to_columns, from_row=from_row)


def _sampling_from_row(row: Any) -> tree_pb2.SamplingParams:
    return tree_pb2.SamplingParams.FromString(row.sampling)


def _policy_to_columns(segment: tree_pb2.Segment) -> tuple[object, ...]:
    return segment.policy.learner_epoch, segment.policy.step, segment.policy.digest


def _policy_from_row(row: Any) -> tree_pb2.PolicyRef:
    return tree_pb2.PolicyRef(
        learner_epoch=row.policy_epoch, step=row.policy_step, digest=row.policy_digest
    )


SEGMENT = MessageMapping(
    message=tree_pb2.Segment,
    table=schema.segments,
    fields=(
        _plain("id"),
        _plain("tree_id"),
        _plain("parent"),
        _plain("fork"),
        _plain("ordinal"),
        _enum("kind"),
        _enum("origin"),
        _plain("tokens"),
        _plain("logprobs"),
        _plain("sampled_logprobs"),
        MappedField(
            name="policy",
            columns=("policy_epoch", "policy_step", "policy_digest"),
            to_columns=_policy_to_columns,
            from_row=_policy_from_row,
        ),
        MappedField(
            name="sampling",
            columns=("sampling",),
            to_columns=lambda segment: (segment.sampling.SerializeToString(),),
            from_row=_sampling_from_row,
        ),
        _enum("finish"),
        _plain("producer"),
        _plain("text"),
        _plain("cached_tokens"),
        _plain("entropies"),
        _encoded("signals", tree_pb2.TokenSignals, absent=b""),
        _encoded("receipt", tree_pb2.Receipt, absent=None),
    ),
    # length: tokens; prefix_sampled: tokens of the answer on the path before the segment.
    filled_by_store=frozenset({"n", "length", "prefix_sampled", "claim_epoch", "stored_ms"}),
)
PLACE_COLUMNS = ("id", "parent", "fork", "ordinal")
"""Columns by which `banyan.order` finds the path of a segment."""
TENSOR_COLUMNS = ("tokens", "logprobs", "sampled_logprobs", "entropies", "signals")
"""Columns that hold a value per token, and so nearly all bytes of a segment."""

SCORE = MessageMapping(
    message=tree_pb2.Score,
    table=schema.scores,
    fields=(
        _enum("state"),
        _plain("value"),
        MappedField(
            name="parts",
            columns=("parts",),
            to_columns=lambda score: (json.dumps(dict(score.parts), sort_keys=True),),
            from_row=lambda row: json.loads(row.parts),
        ),
        _plain("reason"),
        _encoded("repair", tree_pb2.Repair, absent=None),
    ),
)
SCORED_LEAF = MessageMapping(
    message=tree_pb2.ScoredLeaf,
    table=schema.scores,
    fields=(
        MappedField(
            name="leaf",
            columns=("segment", "end"),
            to_columns=lambda scored: (scored.leaf.segment, scored.leaf.end),
            from_row=lambda row: tree_pb2.LeafRef(segment=row.segment, end=row.end),
        ),
        _plain("scorer"),
        _plain("scorer_version"),
        MappedField(
            name="score",
            columns=SCORE.columns,
            to_columns=lambda scored: SCORE.values(scored.score),
            from_row=SCORE.from_row,
        ),
    ),
    left_out=frozenset({"duration_ms"}),  # of the event, which has a column for it
)
LEAF_SCORED = MessageMapping(
    message=events_pb2.LeafScored,
    table=schema.scores,
    fields=(
        _plain("tree_id"),
        MappedField(
            name="scored",
            columns=SCORED_LEAF.columns,
            to_columns=lambda event: SCORED_LEAF.values(event.scored),
            from_row=SCORED_LEAF.from_row,
        ),
        _plain("verifier_id", "verifier"),
        _plain("duration_ms"),
    ),
    left_out=frozenset({"run_id"}),  # the run of the tree
    filled_by_store=frozenset({"n", "stored_ms"}),
)
RESCORE = MessageMapping(
    message=tree_pb2.Rescore,
    table=schema.rescores,
    fields=(
        MappedField(
            name="scored",
            columns=SCORED_LEAF.columns,
            to_columns=lambda rescore: tuple(SCORED_LEAF.to_columns(rescore.scored).values()),
            from_row=SCORED_LEAF.from_row,
        ),
        _plain("settings_json", "settings"),
        _plain("stored_unix_ms", "stored_ms"),
    ),
    filled_by_store=frozenset({"n", "tree_id", "settings_digest", "duration_ms"}),
)


def weights_to_text(weights: Iterable[float]) -> str:
    """Return the text of the column of a tree's weights."""
    values = list(weights)
    return json.dumps(values) if values else ""


def weights_from_text(text: str) -> tuple[float, ...]:
    """Return the weights in the text of their column, in the order of the scorers."""
    return tuple(json.loads(text)) if text else ()
