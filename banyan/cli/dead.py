"""`banyan dead`: list messages that could not be processed, and publish one again."""

from typing import Annotated

import typer

from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, out
from banyan.cli.store import commanding, reading
from banyan.wire import plain_data

app = typer.Typer(
    help="List, and send again, messages that could not be processed.", no_args_is_help=True
)


@app.command("ls")
def list_dead(
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Most letters that are listed.")
    ] = 50,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """List dead letters, newest first."""
    with reading(state) as client:
        rows = [
            {
                "id": d.id,
                "stream": d.letter.stream,
                "subject": d.letter.subject,
                "reason": d.letter.reason,
                "attempts": d.letter.attempts,
                "service": d.letter.service,
                "stored": plain_data.when(d.stored_unix_ms),
                "replayed": d.replayed,
            }
            for d in client.dead(limit)
        ]
    emit(rows, as_json, ("id", "stream", "subject", "reason", "attempts", "replayed"))


@app.command("replay")
def replay(
    number: Annotated[
        int, typer.Argument(min=1, max=2**63 - 1, help="Its id, as banyan dead ls prints it.")
    ],
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Publish a dead letter's message again; needs a running system."""
    with commanding(state) as client:
        client.replay_dead(number)
    if as_json:
        emit({"id": number, "replayed": True}, True)
    else:
        out.print(f"dead letter {number} is published again")
