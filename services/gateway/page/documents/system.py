"""Documents of the system: processes, queues, dead letters. Pure, but for looks at processes."""

import datetime
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

_RUNS = ("starting", "ready")  # states of a process that should be alive


def alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not waited for does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    except OSError:
        return True  # no such file system
    return stat.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])


def processes(text: str, is_alive: Callable[[int], bool] = alive) -> list[dict[str, Any]]:
    """Return the processes of the supervisor's list, each with what is true of it now.

    The supervisor may itself have been killed, so the list is not believed about who lives.
    """
    try:
        rows = json.loads(text or "[]")
    except ValueError:
        return []
    return [_process(row, is_alive) for row in rows if isinstance(row, dict)]


def _process(row: dict[str, Any], is_alive: Callable[[int], bool]) -> dict[str, Any]:
    state, pid = str(row.get("state", "")), int(row.get("pid") or 0)
    if state in _RUNS and not is_alive(pid):
        state = "dead"
    since = row.get("since")
    return {
        "name": row.get("name") or row.get("service"),
        "service": row.get("service"),
        "run_id": row.get("run") or None,
        "pid": pid or None,
        "state": state,
        "since": _when(since) if isinstance(since, int | float) else None,
        "restarts": row.get("restarts", 0),
        "health": {"ready": "serves", "starting": "starts"}.get(state, "does not serve"),
        "last_words": row.get("last_words") or None,
    }


def _when(unix_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
    return moment.isoformat(timespec="milliseconds")


def letters(found: Iterable[rs.StoredDeadLetter]) -> list[dict[str, Any]]:
    """Return dead letters, without their messages."""
    return [
        {
            "id": d.id,
            "stream": d.letter.stream,
            "subject": d.letter.subject,
            "service": d.letter.service,
            "reason": d.letter.reason,
            "attempts": d.letter.attempts,
            "when": plain_data.when(d.stored_unix_ms),
            "bytes": d.payload_bytes,
            "replayed": d.replayed,
        }
        for d in found
    ]
