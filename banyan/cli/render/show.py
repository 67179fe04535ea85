"""`banyan runs show` for people: a run's facts, evaluations, nodes and counts."""

from typing import Any

from rich.text import Text

from banyan.cli.render.console import out, table_of
from banyan.progress import run_status
from banyan.wire import plain_data

_FACTS = ("run_id", "state", "step", "cause", "created", "ended", "folder")
_COUNTS = ("batches", "leaves", "unscorable", "sampled_tokens", "saved_tokens", "unused_tokens")
_EVALUATION = ("label", "n", "accuracy", "95 % interval", "mean reward", "unscorable")
_RECENT = 10
_ASIDE = ("batch", "cause")
_NODE = ("node", "host", "joined", "present", "seen", "trees")


def show(run: dict[str, Any]) -> None:
    """Print the content of `runs show --json`."""
    facts = {key: run[key] for key in _FACTS if run[key] is not None}
    facts |= {"groups": ", ".join(f"{count} {name}" for name, count in run["groups"].items())}
    facts |= {key.replace("_", " "): f"{run[key]:,}" for key in _COUNTS}
    facts |= {"mean reward": "-" if run["mean_reward"] is None else f"{run['mean_reward']:.3f}"}
    skipped = sum(step.get("not_finite") or 0 for step in run["metrics"])
    facts |= {"not finite": f"{skipped:g} steps, which were skipped"} if skipped else {}
    facts |= {"policy": plain_data.policy_words(run["policies"][-1] if run["policies"] else None)}
    width = max(map(len, facts))
    for key, value in facts.items():
        out.print(Text.assemble((key.ljust(width), "bold"), f"  {value}"), soft_wrap=True)
    _table(
        "evaluations",
        [
            row
            for e in sorted(run["evaluations"], key=lambda e: run_status.order(e["label"]))
            for row in _evaluation(e)
        ],
        _EVALUATION,
    )
    _table("batches that were set aside", run["set_aside"], _ASIDE)
    _table("nodes", run["nodes"], _NODE)
    _table("metrics", _metrics(run["metrics"]), ("metric", "last step", f"mean of {_RECENT}"))
    stats = [
        {"": name.replace("_", " "), "count": count} for name, count in sorted(run["stats"].items())
    ]
    _table("counts in the store, with evaluations", stats, ("", "count"))


def _metrics(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of the last step, each with its mean over the newest steps."""
    rows = []
    for name, value in (steps[-1] if steps else {}).items():
        known = [s[name] for s in steps[-_RECENT:] if s.get(name) is not None]
        if name != "step" and known:
            rows.append(
                {"metric": name, "last step": value, f"mean of {_RECENT}": sum(known) / len(known)}
            )
    return rows


def _table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    if rows:
        out.print()
        out.print(title, style="bold")
        out.print(table_of(rows, columns))


def _evaluation(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of an evaluation: its answers, and its votes if it has any."""
    votes = {"majority": row["votes"], "by head": row["head_votes"]}
    return [
        _line(row),
        *(
            _line({"label": f"{row['label']}, {name}", "n": found["rows"], **found})
            for name, found in votes.items()
            if found is not None
        ),
    ]


def _line(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 0:
        return row
    low, high = row["wilson_95"]
    return row | {
        "accuracy": f"{100 * row['accuracy']:.1f} %",
        "95 % interval": f"{100 * low:.1f} – {100 * high:.1f}",
        "mean reward": f"{row['mean_reward']:.3f}",
    }
