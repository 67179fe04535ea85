"""Output of `banyan runs watch`: a line for every step and state, once, and the end of the run."""

from pathlib import Path
from typing import Any

from banyan.cli.invocation import proposed
from banyan.cli.render.console import emit, out
from banyan.errors import Refused
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data


class Watch:
    """Printer of news: all of it as JSON, changes for people."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._seen: tuple[str, int | None] | None = None

    def update(self, news: gw.WatchRunResponse) -> None:
        """Print the next message."""
        line = _line(news.run, news.progress)
        if self._json:
            emit(line | {"metrics": [plain_data.numbers(p.metrics) for p in news.policies]}, True)
        elif self._seen != (line["state"], line["step"]):
            self._seen = line["state"], line["step"]
            steps = [p.metrics for p in news.policies if p.metrics]
            _print(line, steps[-1].get("reward") if steps else line["mean_reward"])


def end(run: rs.Run, progress: rs.ReadProgressResponse, state: Path, as_json: bool) -> None:
    """Print where a run ended.

    Raises Refused, with the command that continues it, for a run that is not over.
    """
    if run.state not in plain_data.OVER:
        raise Refused(
            f"run {run.run_id} is {plain_data.run_state(run.state)} at step {run.step}, and "
            f"nothing runs on {state}; go on with it: "
            f"{proposed(f'train --run {run.run_id}', state)}"
        )
    line = _line(run, progress)
    if as_json:
        emit(line | {"metrics": []}, True)
    else:
        _print(line, line["mean_reward"])


def _line(run: rs.Run, progress: rs.ReadProgressResponse) -> dict[str, Any]:
    return {
        "state": plain_data.run_state(run.state),
        "cause": run.cause or None,
    } | plain_data.progress(progress)


def _print(line: dict[str, Any], reward: float | None) -> None:
    step = "-" if line["step"] is None else line["step"]
    shown = "-" if reward is None else f"{reward:.3f}"
    cause = f"  {line['cause']}" if line["cause"] else ""
    state = line["state"].lower().replace("_", " ")
    counts = f"leaves {line['leaves']:,}  sampled {line['sampled_tokens']:,}"
    text = f"{state}  step {step}  reward {shown}  {counts}{cause}"
    out.print(text, markup=False, soft_wrap=True)
