"""Removal of a run: mark, files, rows, then its own row.

After a kill at any point the same command continues.
"""

from pathlib import Path

from banyan.client import Client
from banyan.runtime import run_files
from banyan.v1 import runstore_service_pb2 as rs

KEEP = {"": rs.KEPT_UNSPECIFIED, "metrics": rs.KEPT_METRICS, "trees": rs.KEPT_TREES}


def remove(client: Client, state: Path, run: rs.Run, keep: "rs.Kept.ValueType") -> int:
    """Remove a run that is over, with its files; return the number of removed rows.

    Raises Refused for a run that may go on.
    """
    client.remove(run.run_id, keep, begin=True)
    run_files.remove(state, run, everything=keep == rs.KEPT_UNSPECIFIED)
    rows = 0
    while True:
        answer = client.remove(run.run_id, keep)
        rows += answer.rows
        if answer.done:
            return rows
