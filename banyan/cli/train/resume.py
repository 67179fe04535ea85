"""Choice of the run that `banyan train --resume` continues, a FAILED one included."""

from collections.abc import Sequence
from pathlib import Path

from banyan.cli.invocation import proposed
from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

_FOR_GOOD = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_CANCELLED)


def chosen(known: Sequence[rs.Run], wanted: str, state: Path) -> rs.Run:
    """Return the run whose id begins with `wanted`, or the newest that can be resumed.

    Runs that are not over come before FAILED ones. Raises InvalidInput with the candidates.
    """
    runs = live(known) or failed(known)
    if wanted:
        runs = live(known) + failed(known)
    ended = [
        run for run in known if wanted and run.state in _FOR_GOOD and run.run_id.startswith(wanted)
    ]
    if ended and not any(run.run_id.startswith(wanted) for run in runs):
        raise InvalidInput(_over(ended[0], wanted, state))
    if not runs:
        raise nothing(wanted, state)
    matches = [run for run in runs if run.run_id.startswith(wanted)]
    exact = [run for run in matches if run.run_id == wanted]
    if len(matches) == 1 or not wanted or exact:
        return (exact or matches)[0]
    names = ", ".join(run.run_id for run in (matches or runs))
    if matches:
        raise InvalidInput(f"--run {wanted!r} begins several runs: {names}; give more of the id")
    raise InvalidInput(
        f"--run {wanted!r}: no run of this id is left to resume in {state}; there are {names}"
    )


def nothing(wanted: str, state: Path) -> InvalidInput:
    """Return the error of a state folder without any run that could be resumed."""
    what = f"--run {wanted!r}: there is no run to resume" if wanted else "there is no run to resume"
    return InvalidInput(
        f"{what} in {state.absolute()}; name another state folder with --state, or start a run: "
        f"{proposed('train RECIPE', state)}"
    )


def live(runs: Sequence[rs.Run]) -> list[rs.Run]:
    """Return the runs that are not over."""
    return [run for run in runs if run.state not in plain_data.OVER]


def failed(runs: Sequence[rs.Run]) -> list[rs.Run]:
    """Return the runs that may be resumed though they ended."""
    return [run for run in runs if run.state == rs.RUN_STATE_FAILED]


def _over(run: rs.Run, wanted: str, state: Path) -> str:
    final = plain_data.run_state(run.state)
    shown = proposed(f"runs show {run.run_id}", state)
    return (
        f"--run {wanted!r}: {run.run_id} is over ({final} at step {run.step}) and cannot go on; "
        f"{shown} shows how it ended"
    )


def others(known: Sequence[rs.Run], run: rs.Run, state: Path) -> str:
    """Return a line that names the other runs that could be resumed; empty without any."""
    named = [
        f"{other.run_id} ({plain_data.run_state(other.state)} at step {other.step})"
        for other in live(known)
        if other.run_id != run.run_id
    ]
    return (
        f"other unfinished runs: {', '.join(named)}; to resume one: "
        f"{proposed('train --run ID', state)}"
        if named
        else ""
    )
