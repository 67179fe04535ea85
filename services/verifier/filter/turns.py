"""Turns of stored paths as scorers get them, in this process and in their children."""

from collections.abc import Iterable
from typing import Any

from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput
from banyan.plugins.transcript import Observed, to_plain
from banyan.v1 import treestore_service_pb2 as ts


def plain(turns: Iterable[ts.Turn]) -> list[dict[str, Any]]:
    """Return turns as plain data. Raise InvalidInput for one of another version of Banyan."""
    return [_plain(turn) for turn in turns]


def _plain(turn: ts.Turn) -> dict[str, Any]:
    seen = turn.receipt.observation
    try:
        outcome = ToolOutcome(seen.outcome)
    except ValueError as error:
        raise InvalidInput(f"the answer to action {turn.action.hex()[:12]}: {error}") from None
    observed = Observed(seen.environment, outcome, seen.reward, seen.done)
    return to_plain(turn.receipt.call, turn.answer, observed, left_out=turn.left_out)
