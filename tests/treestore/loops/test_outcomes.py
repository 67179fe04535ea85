"""What a transaction did is counted by kinds of reasons, of which there are few."""

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from banyan.v1 import tree_pb2
from services.treestore.ingest.outcome import Outcome
from services.treestore.loops.outcomes import publish_outcome
from services.treestore.unit_of_work.context import Context


def test_what_a_node_says_is_no_label() -> None:
    dropped = [(int(tree_pb2.TREE_STATE_DROPPED), f"RETURNED: my words {n}") for n in range(3)]
    outcome = Outcome(ended=dropped, refused=["PARENT_REFUSED", "my own words"])
    context = cast(Context, SimpleNamespace(notifier=mock.Mock(), wake_outbox=mock.Mock()))
    with mock.patch("services.treestore.loops.outcomes.telemetry.count") as count:
        publish_outcome(context, outcome)
    assert [_labelled(call) for call in count.call_args_list] == [
        ("banyan.segments.refused", "PARENT_REFUSED"),
        ("banyan.segments.refused", "OTHER"),
        *[("banyan.trees.dropped", "RETURNED")] * 3,
    ]


def test_missing_scores_are_counted_by_scorer_and_kind() -> None:
    missing = [("number", "TIMEOUT: 2 s"), ("mine:reward", "KeyError of mine")]
    context = cast(Context, SimpleNamespace(notifier=mock.Mock(), wake_outbox=mock.Mock()))
    with mock.patch("services.treestore.loops.outcomes.telemetry.count") as count:
        publish_outcome(context, Outcome(missing=missing))
    assert [(call.kwargs["banyan_scorer"], *_labelled(call)) for call in count.call_args_list] == [
        ("number", "banyan.scores.missing", "TIMEOUT"),
        ("mine:reward", "banyan.scores.missing", "OTHER"),
    ]


def _labelled(call: Any) -> tuple[str, str]:
    return call.args[0], call.kwargs["banyan_reason"]
