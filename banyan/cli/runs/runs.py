"""`banyan runs` and `banyan ps`."""

import json
import os
from typing import Annotated, Any

import typer

from banyan.cli import offline
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render import show as show_module
from banyan.cli.render.console import emit, err, out
from banyan.cli.runs import removal
from banyan.cli.runs import watch as watching
from banyan.cli.store import commanding, reading, running
from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

app = typer.Typer(help="List, show, watch, cancel and remove runs.", no_args_is_help=True)
CAUSE = "cancelled by a person"
PAUSE = "paused by a person"
RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of the run, or a unique beginning of it.")
]


@app.command("ls")
def list_runs(state: State = DEFAULT_STATE, as_json: Json = False) -> None:
    """List all runs, newest first."""
    with reading(state) as client:
        rows = [plain_data.run(r) for r in client.runs()]
    emit(rows, as_json, ("run_id", "state", "step", "created", "cause"))


@app.command("show")
def show(run_id: RunId, state: State = DEFAULT_STATE, as_json: Json = False) -> None:
    """Show a run, its progress, and its evaluations."""
    with reading(state) as client:
        run = client.run(run_id)
        result = plain_data.run(run) | plain_data.progress(client.progress(run.run_id))
        members = client.members(run.run_id)
        result["members"] = plain_data.present(members)
        result["nodes"] = [plain_data.member(m) for m in members]
        result["stats"] = client.stats(run.run_id)
        policies = client.policies(run.run_id)
        result["policies"] = [plain_data.policy(p.published.policy) for p in policies][-1:]
        result["metrics"] = plain_data.metrics(policies)
    if as_json:
        emit(result, True)
    else:
        show_module.show(result)


@app.command("groups")
def groups(
    run_id: RunId,
    last: Annotated[int, typer.Option(min=1, help="Number of groups, the newest ones.")] = 20,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Show the rows that the run's curriculum gave to the newest training groups, and why."""
    with reading(state) as client:
        run = client.run(run_id)
        first = client.progress(run.run_id).groups.opened - last
        rows = [plain_data.allocation(a) for a in client.allocations(run.run_id, max(0, first))]
    if rows or as_json:
        emit(
            rows, as_json, ("group", "row", "trees", "settings", "max_new_tokens", "batches", "why")
        )
    else:
        curriculum = json.loads(run.recipe_json).get("control", {}).get("curriculum", "uniform")
        out.print(
            f"curriculum {curriculum} decided nothing: a group's row follows from the seed and its "
            "ordinal alone"
        )


@app.command("watch")
def watch(run_id: RunId, state: State = DEFAULT_STATE, as_json: Json = False) -> None:
    """Print the events of a run until it is over or paused."""
    with reading(state) as client:
        run = client.run(run_id)
        if run.state in plain_data.OVER or not running(state):
            watching.end(run, client.progress(run.run_id), state, as_json)
            return
        view = watching.Watch(as_json)
        for news in client.watch(run.run_id):
            view.update(news)
            if news.run.state == rs.RUN_STATE_PAUSED:
                return


@app.command("cancel")
def cancel(
    run_id: RunId,
    pause: Annotated[
        bool, typer.Option("--pause", help="Only pause it: it can be resumed.")
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Cancel a run, also one that is paused while nothing runs; with --pause it can be resumed."""
    with reading(state) as client:
        run = client.run(run_id)
    if pause or running(state):
        with commanding(state) as client:
            run = client.cancel(run.run_id, PAUSE if pause else CAUSE, pause)
    elif run.state in plain_data.OVER:
        raise Refused(f"run {run.run_id} is {plain_data.run_state(run.state)} already")
    else:
        run = offline.cancelled(state, run.run_id, CAUSE)
    emit(plain_data.run(run), as_json)


@app.command("rm")
def remove(
    run_id: RunId,
    keep: Annotated[
        str, typer.Option(help="What stays: trees (and metrics), metrics, or nothing.")
    ] = "",
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Remove a run that is over, with its checkpoints. If interrupted, repeat it: it continues."""
    if keep not in removal.KEEP:
        raise InvalidInput(
            f"--keep {keep!r} is nothing that can be kept; say metrics or trees, or leave it out"
        )
    with reading(state) as client:
        run = client.run(run_id)
    if run.state not in plain_data.OVER:
        how = f"cancel it first: banyan runs cancel {run.run_id}"
        raise Refused(
            f"run {run.run_id} is {plain_data.run_state(run.state)} and may go on; {how}",
            Reason.RUN_LIVE,
        )
    if not as_json:
        err.print(f"removing {run.run_id} …", markup=False)
    if running(state):
        with commanding(state) as client:
            rows = removal.remove(client, state, run, removal.KEEP[keep])
    else:
        rows = offline.removed(state, run, removal.KEEP[keep])
    emit({"run_id": run.run_id, "kept": keep or "nothing", "rows": rows}, as_json)


def ps(state: State = DEFAULT_STATE, as_json: Json = False) -> None:
    """List the processes of the embedded mode: service, pid, state."""
    rows: list[dict[str, Any]] = []
    try:
        rows = json.loads((state / "processes.json").read_text())
    except (OSError, ValueError):
        rows = []
    alive = [row for row in rows if row["pid"] and _alive(row["pid"])]
    emit(alive, as_json, ("service", "pid", "state", "run"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
