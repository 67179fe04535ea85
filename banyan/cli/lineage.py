"""`banyan lineage SEGMENT`: where a segment came from, what it scored, the batch that used it, the policy it made."""

from typing import Annotated, Any

import typer

from banyan.cli import describe
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.output import emit, out
from banyan.cli.store import reading
from banyan.cli.trees import hex_prefix


def lineage(
    segment: Annotated[str, typer.Argument(help="Id of the segment in hex, or a unique beginning of at least 8 digits.")],
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Shows a segment's ancestors, its scores, the batch that used it and the policy that the batch made."""
    with reading(state) as client:
        answer = client.ancestry(hex_prefix(segment))
        consumers = client.consumers(hex_prefix(segment))
    result: dict[str, Any] = {
        "run_id": answer.spec.run_id,
        "tree_id": answer.spec.tree_id.hex(),
        "group_id": answer.spec.group_id,
        "task_id": answer.spec.row_digest.hex(),
        "ancestors": [describe.segment(s) for s in answer.segments],
        "scores": [describe.scored(s) for s in answer.scores],
        "batches": [
            {"ordinal": c.batch.ordinal, "use": c.batch.use, "policy": describe.policy(c.policy)} for c in consumers
        ],
    }
    if as_json:
        emit(result, True)
        return
    emit({k: result[k] for k in ("run_id", "tree_id", "group_id")}, False)
    emit(result["ancestors"], False, ("id", "kind", "tokens", "finish", "policy_version", "text"))
    emit(result["scores"], False, ("segment", "scorer", "state", "value", "reason"))
    for batch in result["batches"]:
        out.print(f"used by batch {batch['ordinal']} ({batch['use']}), which made policy {batch['policy']}")
