"""Removal of a run: mark, files, rows, then its own row.

After a kill at any point the same command continues.
"""

import glob
import shutil
from pathlib import Path

from banyan.client import Client
from banyan.errors import Refused
from banyan.v1 import runstore_service_pb2 as rs

KEEP = {"": rs.KEPT_UNSPECIFIED, "metrics": rs.KEPT_METRICS, "trees": rs.KEPT_TREES}
_PROCESSES = ("learner", "rollout")  # beginnings of the names of a run's log files
_WEIGHTS = ("checkpoints", "weights")  # large folders of a run


def remove(client: Client, state: Path, run: rs.Run, keep: "rs.Kept.ValueType") -> int:
    """Remove a run that is over, with its files; return the number of removed rows.

    Raises Refused for a run that may go on.
    """
    client.remove(run.run_id, keep, begin=True)
    _remove_files(state, run, everything=keep == rs.KEPT_UNSPECIFIED)
    rows = 0
    while True:
        answer = client.remove(run.run_id, keep)
        rows += answer.rows
        if answer.done:
            return rows


def _remove_files(state: Path, run: rs.Run, everything: bool) -> None:
    """Remove checkpoints and weights; with `everything` also the run's logs and folder.

    The run's folder is removed only if it lies in the state folder: another may hold more.
    """
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
            raise Refused(
                f"cannot remove {error.filename or path}: {error.strerror}; fix that and "
                "run the command again",
                "FILES",
            ) from None
    for path in logs if everything else ():
        path.unlink(missing_ok=True)
