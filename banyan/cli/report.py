"""What a run leaves on the screen: accuracy before and after, a best and a worst tree, and where everything is."""

from pathlib import Path
from typing import Any

from rich.table import Table

from banyan.cli import describe, trees
from banyan.cli.output import out
from banyan.cli.runs import newest_checkpoint
from banyan.client import Client
from banyan.errors import BanyanError
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts


def accuracies(progress: rs.ReadProgressResponse) -> dict[str, dict[str, Any]]:
    """Evaluations by label."""
    return {e.label: describe.evaluation(e) for e in progress.evals}


def accuracy_table(progress: rs.ReadProgressResponse) -> Table:
    """Held-out accuracy before and after, with n and the Wilson 95 % interval."""
    table = Table(title="held-out accuracy", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in ("", "n", "before", "95 % interval", "after", "95 % interval"):
        table.add_column(column, justify="left" if not column else "right")
    found = accuracies(progress)
    for kind in ("greedy", "sampled"):
        before, after = found.get(f"before-{kind}"), found.get(f"after-{kind}")
        if before or after:
            n = (after or before or {})["n"]
            table.add_row(kind, str(n), *_cells(before), *_cells(after))
    return table


def _cells(evaluation: dict[str, Any] | None) -> tuple[str, str]:
    if not evaluation or evaluation["accuracy"] is None:
        return "-", "-"
    low, high = evaluation["wilson_95"]
    return f"{100 * evaluation['accuracy']:.1f} %", f"{100 * low:.1f} – {100 * high:.1f}"


def extremes(summaries: list[ts.TreeSummary]) -> tuple[ts.TreeSummary, ts.TreeSummary] | None:
    """The best and the worst tree by mean reward, the newest of equals.

    Where there are trees between the extremes, only those are looked at: their leaves differ, so they taught something.
    """
    scored = [s for s in summaries if s.HasField("mean_reward")]
    if not scored:
        return None
    low, high = (pick(s.mean_reward for s in scored) for pick in (min, max))
    candidates = [s for s in scored if low < s.mean_reward < high] or scored
    return max(candidates, key=lambda s: s.mean_reward), min(candidates, key=lambda s: s.mean_reward)


def print_report(client: Client, run_id: str, recipe: Recipe, seconds: float, state: Path) -> None:
    """Prints the whole report of a run that is over."""
    run = client.run(run_id)
    out.print()
    out.print(accuracy_table(client.progress(run.run_id)))
    out.print()
    found = extremes(client.trees(run.run_id, 1000, purpose=tree_pb2.TREE_PURPOSE_TRAIN))
    if found:
        for title, summary in zip(("best tree", "worst tree"), found, strict=True):
            out.print(f"[bold]{title}[/bold] {summary.tree_id.hex()[:16]}  mean reward {summary.mean_reward:.3f}")
            _print_tree(client, summary, recipe)
    _print_places(run, seconds, state)


def _print_tree(client: Client, summary: ts.TreeSummary, recipe: Recipe) -> None:
    tree = client.tree(summary.tree_id)
    out.print(trees.render(tree, recipe, trees.group_of(client, tree)))
    out.print()


def _print_places(run: rs.Run, seconds: float, state: Path) -> None:
    state_name = describe.run_state(run.state)
    why = f": {run.cause}" if run.cause else ""
    out.print(f"{run.run_id} {state_name} at step {run.step} in {seconds:.1f} s{why}", markup=False, soft_wrap=True)
    try:
        out.print(f"checkpoint  {newest_checkpoint(Path(run.folder))}", soft_wrap=True)
    except BanyanError as error:
        out.print(f"checkpoint  none: {error}", soft_wrap=True)
    out.print(f"logs        {state.resolve() / 'logs'}", soft_wrap=True)
    where = "" if state == Path(".banyan") else f" --state {state}"
    out.print(f"more        banyan runs show {run.run_id}{where}", soft_wrap=True)
