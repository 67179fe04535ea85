"""Remove a run: mark, files, rows, then its own row, so that after a kill at any point the same command goes on."""

import glob
import shutil
from pathlib import Path

from banyan.client import Client
from banyan.errors import Refused
from banyan.v1 import runstore_service_pb2 as rs

KEEP = {"": rs.KEPT_UNSPECIFIED, "metrics": rs.KEPT_METRICS, "trees": rs.KEPT_TREES}
_PROCESSES = ("learner", "rollout")  # of a run, as their log files are named
_WEIGHTS = ("checkpoints", "weights")  # what is large in a run's folder; what loggers wrote is not


def remove(client: Client, state: Path, run: rs.Run, keep: "rs.Kept.ValueType") -> int:
    """Removes a run that is over, with its files; the rows that went. Raises Refused for one that may go on."""
    client.remove(run.run_id, keep, begin=True)
    _remove_files(state, run, everything=keep == rs.KEPT_UNSPECIFIED)
    rows = 0
    while True:
        answer = client.remove(run.run_id, keep)
        rows += answer.rows
        if answer.done:
            return rows


def _remove_files(state: Path, run: rs.Run, everything: bool) -> None:
    """Checkpoints and weights; with `everything` the log files of its processes, too, and the run's folder, if the state
    folder made it: another may hold more."""
    runs = (state / "runs").resolve()
    folder = Path(run.folder).resolve() if run.folder else runs / run.run_id
    whole = everything and folder.parent == runs
    logs = [
        path
        for name in _PROCESSES
        for path in (state / "logs").glob(f"{name}-{glob.escape(run.run_id)}-[0-9]*.log*")
    ]
    for path in [folder] if whole else [folder / name for name in _WEIGHTS]:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            message = f"cannot remove {error.filename or path}: {error.strerror}; put that right, and say it again"
            raise Refused(message, "FILES") from None
    for path in logs if everything else ():
        path.unlink(missing_ok=True)
