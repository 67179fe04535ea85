"""Turns of paths: what was done on the way to a place, and what environments answered."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from banyan.segment import Kind
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts

MOST_TEXT = 65_536  # characters of a path's actions and answers that a transcript has


def of_path(segments: Mapping[bytes, Row[Any]], leaf: Leaf) -> list[ts.Turn]:
    """Return the answered actions on the way to a place, the first one first.

    The texts of early ones are left out where all together are longer than `MOST_TEXT`; how they
    ended is there.
    """
    newest_first: list[ts.Turn] = []
    left = MOST_TEXT
    segment_id, end = leaf.segment, leaf.end
    while segment_id:
        row = segments[segment_id]
        if row.kind == Kind.TOOL and end:
            there = turn(row)
            left -= len(there.answer) + len(there.receipt.call)
            newest_first.append(there if left >= 0 else _without_texts(there))
        segment_id, end = row.parent, row.fork
    return newest_first[::-1]


def turn(answer: Row[Any]) -> ts.Turn:
    """Return the turn that a TOOL segment ends."""
    receipt = tree_pb2.Receipt.FromString(answer.receipt or b"")
    return ts.Turn(action=answer.parent, receipt=receipt, answer=answer.text)


def _without_texts(there: ts.Turn) -> ts.Turn:
    there.receipt.call = there.answer = ""
    there.left_out = True
    return there
