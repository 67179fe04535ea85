"""The list of all processes, which `banyan ps` and the page read: processes.json."""

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from services.supervisor.child import Child

log = logging.getLogger(__name__)
FILE = "processes.json"
_LAST_WORDS = 500  # characters


class ProcessList:
    """Writer of the list. It remembers since when each process is in its state."""

    def __init__(self, state: Path) -> None:
        self._file = state / FILE
        self._since: dict[str, tuple[str, int, float]] = {}

    def write(self, children: Iterable[Child]) -> None:
        """Write the list; a full disk only leaves the old one."""
        partial = self._file.with_name(f"{FILE}.partial")
        try:
            partial.write_text(json.dumps([self._row(child) for child in children]))
            partial.rename(self._file)
        except OSError as error:
            log.warning("cannot write %s: %s", partial, error.strerror)

    def _row(self, child: Child) -> dict[str, Any]:
        # Of one that was just killed the supervisor has not decided yet.
        ended = child.state in ("starting", "ready") and not child.running
        state = "ended" if ended else child.state
        known = self._since.get(child.name)
        if known is None or known[:2] != (state, child.pid):
            self._since[child.name] = known = (state, child.pid, time.time())
        last = child.last_words() if child.exits else ""
        return {
            "service": child.service,
            "pid": child.pid,
            "state": state,
            "run": child.run_id,
            "name": child.name,
            "since": round(known[2], 3),
            "restarts": len(child.exits),
            "last_words": last.removeprefix(": ")[:_LAST_WORDS],
        }
