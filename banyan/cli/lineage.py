"""`banyan lineage SEGMENT`: origin and scores of a segment, its batches and their policies."""

from typing import Annotated, Any

import typer

from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, out
from banyan.cli.store import reading
from banyan.cli.trees import check_prefix, hex_prefix
from banyan.wire import plain_data


def lineage(
    segment: Annotated[
        str,
        typer.Argument(
            metavar="SEGMENT",
            help="Id of the segment in hex, or a unique beginning of at least 8 digits.",
        ),
    ],
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Show a segment's ancestors, its scores, the batch that used it and the policy of the
    batch."""
    with reading(state) as client:
        prefix = hex_prefix(segment, "banyan trees show TREE prints them")
        answer = client.ancestry(prefix)
        check_prefix(segment, answer.segments[-1].id, "segment")
        consumers = client.consumers(prefix)
    result: dict[str, Any] = {
        "run_id": answer.spec.run_id,
        "tree_id": answer.spec.tree_id.hex(),
        "group_id": answer.spec.group_id,
        "task_id": answer.spec.row_digest.hex(),
        "ancestors": [plain_data.segment(s) for s in answer.segments],
        "scores": [plain_data.scored(s) for s in answer.scores],
        "batches": [
            {"ordinal": c.batch.ordinal, "use": c.batch.use, "policy": plain_data.policy(c.policy)}
            for c in consumers
        ],
    }
    if as_json:
        emit(result, True)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    emit({k: result[k] for k in ("run_id", "tree_id", "group_id")}, False)
    out.print()
    emit(
        [_short(s) for s in result["ancestors"]],
        False,
        ("id", "kind", "tokens", "finish", "policy", "text"),
    )
    out.print()
    emit(
        [_short(s) for s in result["scores"]],
        False,
        ("segment", "scorer", "state", "value", "reason"),
    )
    out.print()
    for batch in result["batches"]:
        version = plain_data.policy_words(batch["policy"])
        out.print(f"used by batch {batch['ordinal']} ({batch['use']}), which made policy {version}")
    if not result["batches"]:
        out.print("no batch has used it")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table, with ids as short as commands accept them."""
    ids = {key: row[key][:16] for key in ("id", "segment") if key in row}
    return row | ids | {"policy": plain_data.policy_words(row.get("policy"))}
