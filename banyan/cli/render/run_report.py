"""Report at the end of a run: measurements before and after, its curve, a tree, places."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from rich.table import Table

from banyan.cli import trees
from banyan.cli.invocation import proposed
from banyan.cli.render.console import out
from banyan.cli.render.curve import curve, thinned
from banyan.cli.render.taught import taught
from banyan.cli.runs import measurements
from banyan.cli.runs.measurements import Measurement
from banyan.client import Client
from banyan.doctor.history import not_deterministic
from banyan.errors import BanyanError
from banyan.recipe import Recipe
from banyan.runtime.run_files import newest_checkpoint
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire import plain_data
from banyan.wire.node_advantages import node_advantages

_SEARCHED = 8  # trees that are read whole in search of a reason
_CURVE, _LEVEL = 48, 5  # characters of the curve; steps of a level
_LINES = ("greedy", "sampled", measurements.LEAF, measurements.MAJORITY, measurements.HEAD)
_LONGEST = 60  # characters of a text in the shown tree


def evaluation_table(progress: rs.ReadProgressResponse) -> Table | None:
    """Return the results on the held-out rows before and after; None without any.

    The table shows accuracy with n and the Wilson 95 % interval if every reward is 0 or 1, else the
    mean reward. n counts answers and, of votes, rows.
    """
    before, after = (_measured(progress, when) for when in ("before", "after"))
    graded = plain_data.graded(progress.evals)
    table = _empty_table(graded)
    for name in _LINES:
        newest = after.get(name) or before.get(name)
        if newest is not None:
            cells = _means if graded else _shares
            table.add_row(name, str(newest.n), *cells(before.get(name)), *cells(after.get(name)))
    return table if table.row_count else None


def _measured(progress: rs.ReadProgressResponse, when: str) -> dict[str, Measurement]:
    """Return the results of the evaluations before or after the run, by line."""
    wanted = [e for e in progress.evals if e.label.rpartition("-")[0] == when]
    return {name: found for e in wanted for name, found in measurements.lines(e)}


def _empty_table(graded: bool) -> Table:
    title = f"held-out {'mean reward' if graded else 'accuracy'}"
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    columns = (
        ("", "n", "before", "after")
        if graded
        else ("", "n", "before", "95 % interval", "after", "95 % interval")
    )
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    return table


def _means(found: Measurement | None) -> tuple[str]:
    return ("-" if found is None else found.reward,)


def _shares(found: Measurement | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (found.share, found.bounds)


def unscored(progress: rs.ReadProgressResponse, why: Callable[[], str]) -> str:
    """Return the number of unscored leaves with a reason; empty if all were scored."""
    missing = progress.samples.unscorable + sum(e.unscorable for e in progress.evals)
    if not missing:
        return ""
    among = progress.samples.leaves + sum(e.scored + e.unscorable for e in progress.evals)
    reason = why()
    return f"{missing} of {among} leaves could not be scored" + (
        f", such as: {reason}" if reason else ""
    )


def given_up(progress: rs.ReadProgressResponse, why: Callable[[], str]) -> str:
    """Return the number of dropped groups with a reason; empty without any."""
    dropped, reason = progress.groups.dropped, why() if progress.groups.dropped else ""
    if not dropped:
        return ""
    return f"{dropped} of {progress.groups.opened} groups were given up" + (
        f", such as: {reason}" if reason else ""
    )


def why_given_up(client: Client, run_id: str) -> str:
    """Return the reason of the newest dropped training tree."""
    states = [tree_pb2.TREE_STATE_DROPPED]
    return next(
        (
            t.reason
            for t in client.trees(run_id, 1, states=states, purpose=tree_pb2.TREE_PURPOSE_TRAIN)
        ),
        "",
    )


def why_unscored(client: Client, run_id: str) -> str:
    """Return the reason of the first unscorable leaf in a few new trees; empty without any."""
    for summary in client.trees(run_id, _SEARCHED):
        for score in client.tree(summary.tree_id).scores:
            if score.score.state == tree_pb2.SCORE_STATE_UNSCORABLE:
                return f"{score.scorer}: {score.score.reason}"
    return ""


def reward_curve(rewards: Sequence[float]) -> str:
    """Return a line with the mean reward of each step; empty for fewer than two."""
    if len(rewards) < 2:
        return ""
    window = min(_LEVEL, len(rewards) // 2)
    first, last = rewards[:window], rewards[-window:]
    return (
        f"{curve(thinned(rewards, _CURVE))}  {fmean(first):.3f} in the first {len(first)} of"
        f" {len(rewards)} steps, {fmean(last):.3f} in the last"
    )


def print_report(client: Client, run_id: str, recipe: Recipe, seconds: float, state: Path) -> None:
    """Print the whole report of a run that is over."""
    run = client.run(run_id)
    out.print()
    progress = client.progress(run.run_id)
    table = evaluation_table(progress)
    if table is not None:
        out.print(table)
        out.print()
    if line := unscored(progress, lambda: why_unscored(client, run.run_id)):
        out.print(f"{line}\n", markup=False, soft_wrap=True)
    if line := given_up(progress, lambda: why_given_up(client, run.run_id)):
        out.print(f"{line}\n", markup=False, soft_wrap=True)

    if line := not_deterministic(recipe.deterministic, client.stats(run.run_id)):
        out.print(f"{line}\n", markup=False, soft_wrap=True)

    steps = plain_data.metrics(client.policies(run_id))
    rewards = [step["reward"] for step in steps if step.get("reward") is not None]
    if line := reward_curve(rewards):
        out.print(f"[bold]reward[/bold] {line}\n", soft_wrap=True)
    newest = client.trees(run.run_id, 1000, purpose=tree_pb2.TREE_PURPOSE_TRAIN)
    chosen = taught(newest, lambda summary: credits_of(client, summary, recipe))
    if chosen is not None:
        _print_tree(client, *chosen, recipe)
    _print_places(run, seconds, state)


def credits_of(client: Client, summary: ts.TreeSummary, recipe: Recipe) -> int:
    """Return how many different advantages the branches of a tree have."""
    tree = client.tree(summary.tree_id)
    try:
        advantages = node_advantages(tree, recipe, trees.group_of(client, tree))
    except Exception:  # foreign estimators raise anything; `trees.render` says it
        return 0
    return len({round(value, 6) for value in advantages.values()})


def _print_tree(client: Client, title: str, summary: ts.TreeSummary, recipe: Recipe) -> None:
    tree = client.tree(summary.tree_id)
    out.print(
        f"[bold]{title}[/bold] {summary.tree_id.hex()[:16]}  mean reward {summary.mean_reward:.3f}"
    )
    out.print(trees.render(tree, recipe, trees.group_of(client, tree), longest=_LONGEST))
    out.print()


def _print_places(run: rs.Run, seconds: float, state: Path) -> None:
    """Print the places of checkpoint and logs. The caller prints the run's cause."""
    state_name = plain_data.run_state(run.state)
    out.print(
        f"{run.run_id} {state_name} at step {run.step} in {seconds:.1f} s",
        markup=False,
        soft_wrap=True,
    )
    try:
        out.print(
            f"checkpoint  {newest_checkpoint(Path(run.folder))}", markup=False, soft_wrap=True
        )
    except BanyanError as error:
        out.print(f"checkpoint  none: {error}", markup=False, soft_wrap=True)
    out.print(f"logs        {state.resolve() / 'logs'}", markup=False, soft_wrap=True)
    for name, verb in (("more", "runs show"), ("page", "page")):
        words = proposed(f"{verb} {run.run_id}", state)
        out.print(f"{name}        {words}", markup=False, soft_wrap=True)
