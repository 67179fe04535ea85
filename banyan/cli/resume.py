"""Which run `banyan train --resume` goes on with, and what it says about the others. Pure."""

from collections.abc import Sequence
from pathlib import Path

from banyan.cli import describe
from banyan.cli.invocation import proposed
from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs


def chosen(runs: Sequence[rs.Run], wanted: str, state: Path) -> rs.Run:
    """The run that `wanted` begins, or else the newest that is not over. Raises InvalidInput with those there are."""
    if not runs:
        raise InvalidInput(f"there is no run to resume in {state}; start one with banyan train RECIPE")
    found = [run for run in runs if run.run_id.startswith(wanted)]
    exact = [run for run in found if run.run_id == wanted]
    if len(found) == 1 or not wanted or exact:
        return (exact or found)[0]
    known = ", ".join(run.run_id for run in (found or runs))
    if found:
        raise InvalidInput(f"--run {wanted!r} begins several runs: {known}; give more of the id")
    raise InvalidInput(f"--run {wanted!r}: no run of this id is left to resume in {state}; there are {known}")


def others(runs: Sequence[rs.Run], run: rs.Run, state: Path) -> str:
    """A line that names the other runs that could be resumed; empty without any."""
    named = [
        f"{other.run_id} ({describe.run_state(other.state)} at step {other.step})"
        for other in runs
        if other.run_id != run.run_id
    ]
    return f"not over either: {', '.join(named)}; go on with one by {proposed('train --run ID', state)}" if named else ""
