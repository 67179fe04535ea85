"""Lists of trees in pages, newest first: each goes on behind the number of its last tree."""

from collections.abc import Iterator

from banyan.client import Client
from banyan.errors import InvalidInput
from banyan.policy import batch_of
from banyan.stored.plain import value_of
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts

PAGE = 500  # trees, some hundred bytes each


def filters(
    run_id: str, purpose: str | None, state: str | None, label: str, step: int | None
) -> ts.TreeFilter:
    """Return the filter of some trees of a run.

    Raises InvalidInput for an unknown name, or a step below 1.
    """
    found = ts.TreeFilter(run_id=run_id, label=label, limit=PAGE)
    if purpose is not None:
        number = value_of(tree_pb2.TreePurpose, purpose, "purpose")
        found.purpose = tree_pb2.TreePurpose.ValueType(number)
    if state is not None:
        number = value_of(tree_pb2.TreeState, state, "state")
        found.states.append(tree_pb2.TreeState.ValueType(number))
    if step is not None:
        if step < 1:
            raise InvalidInput(f"step {step} trained on nothing: the first step is 1")
        found.batch = batch_of(step)
    return found


def summaries(client: Client, wanted: ts.TreeFilter) -> Iterator[ts.TreeSummary]:
    """Yield summaries of trees, newest first; one page is in memory at a time."""
    while page := client.listed(wanted):
        yield from page
        if len(page) < wanted.limit:
            return
        wanted.before = page[-1].number
