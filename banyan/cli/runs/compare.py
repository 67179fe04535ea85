"""`banyan compare`: two runs side by side."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, out, table_of
from banyan.cli.store import reading
from banyan.client import Client
from banyan.errors import InvalidInput
from banyan.progress import comparison
from banyan.progress.comparison import Compared, Estimate
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

_SHOWN = (
    "reward",
    "reward_std",
    "zero_variance_share",
    "unscorable_share",
    "completion_tokens",
    "distinct_answers",
    "entropy",
    "mismatch_kl",
    "start_kl",
    "clip_fraction",
    "grad_norm",
    "staleness_mean",
    "engine_occupancy",
    "train_seconds",
)
_COLUMNS = ("", "A", "B", "B - A")
_GAP = 2  # cells between two columns
_LONGEST = 24  # characters of a recipe's value
Facts = tuple[rs.Run, rs.ReadProgressResponse, list[dict[str, Any]]]


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or its beginning.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare with it.")],
    last: Annotated[
        int, typer.Option(min=1, max=10_000, help="Last steps that metrics are means of.")
    ] = comparison.LAST,
    every: Annotated[bool, typer.Option("--all", help="Show all metrics.")] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Compare two runs: results with their intervals, metrics of the last steps, and recipes."""
    with reading(state) as client:
        runs = [client.run(name) for name in (first, second)]
        if runs[0].run_id == runs[1].run_id:
            raise InvalidInput(f"{first!r} and {second!r} are one run, {runs[0].run_id}")
        a, b = (_facts(client, run) for run in runs)
    result = {
        "evaluations": comparison.evaluations(a[1], b[1]),
        "metrics": comparison.metrics(a[2], b[2], last),
        "recipe": comparison.differences(a[0].recipe_json, b[0].recipe_json),
        "same_rows": a[0].split_digest == b[0].split_digest,
    }
    if as_json:
        emit(_plain(a, b, result), True)
    else:
        _print(a, b, result, last, every)


def _facts(client: Client, run: rs.Run) -> Facts:
    metrics = plain_data.metrics(client.policies(run.run_id))
    return run, client.progress(run.run_id), metrics


def _plain(a: Facts, b: Facts, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "first": plain_data.run(a[0]),
        "second": plain_data.run(b[0]),
        "same_rows": result["same_rows"],
        "evaluations": [asdict(row) for row in result["evaluations"]],
        "metrics": [asdict(row) for row in result["metrics"]],
        "recipe": [
            {"key": key, "first": one, "second": other} for key, one, other in result["recipe"]
        ],
    }


def _print(a: Facts, b: Facts, result: dict[str, Any], last: int, every: bool) -> None:
    for mark, (run, _, metrics) in zip("AB", (a, b), strict=True):
        words = f"{mark}  {run.run_id} {plain_data.run_state(run.state)}, {len(metrics)} steps"
        out.print(words, markup=False, soft_wrap=True)
    _table("held-out rows, with 95 % intervals", result["evaluations"])
    if result["evaluations"] and not result["same_rows"]:
        out.print("the two runs held out different rows")
    shown = [row for row in result["metrics"] if every or row.name in _SHOWN]
    steps = min(last, max(len(a[2]), len(b[2])))
    _table(f"mean of the last {steps} steps, as if steps were independent", shown)
    out.print()
    if not result["recipe"]:
        out.print("the recipes are the same")
        return
    out.print("the recipes differ", style="bold")
    rows = [{"key": key, "A": _cut(one), "B": _cut(other)} for key, one, other in result["recipe"]]
    out.print(table_of(rows, ("key", "A", "B")))


def _table(title: str, compared: list[Compared]) -> None:
    if not compared:
        return
    out.print()
    out.print(title, style="bold")
    rows = _rows(compared, intervals=True)
    if sum(max(len(row[c]) for row in rows) + _GAP for c in _COLUMNS) - _GAP > out.width:
        rows = _rows(compared, intervals=False)
    out.print(table_of(rows, _COLUMNS))


def _rows(compared: list[Compared], intervals: bool) -> list[dict[str, str]]:
    """Return cells; those of the two runs have their intervals only where there is room."""
    return [
        {
            "": row.name,
            "A": _words(row.first, interval=intervals),
            "B": _words(row.second, interval=intervals),
            "B - A": _words(row.difference, signed=True),
        }
        for row in compared
    ]


def _words(estimate: Estimate | None, *, interval: bool = True, signed: bool = False) -> str:
    if estimate is None:
        return "-"
    sign = "+" if signed else ""
    value = f"{estimate.value:{sign}.3g}"
    if estimate.interval is None or not interval:
        return value
    low, high = estimate.interval
    return f"{value} ({low:{sign}.3g} to {high:{sign}.3g})"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
