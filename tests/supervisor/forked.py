"""A module that processes forked by the tests run: it tells what it is, and ends as it is told."""

import json
import os
import signal
import sys
import time
from pathlib import Path

told = {
    "name": __name__,
    "arguments": sys.argv[1:],
    "parent": os.getppid(),
    "session": os.getsid(0),
    "environ": dict(os.environ),
    "imported": "tests.supervisor.imported" in sys.modules,
    "again": getattr(sys.modules.get("tests.supervisor.imported"), "MADE_BY", 0) == os.getpid(),
    "files": len(os.listdir("/proc/self/fd")) - 1,
    "input": os.readlink("/proc/self/fd/0"),
    "kernels_name": Path("/proc/self/comm").read_text().strip(),
    "cores": sorted(os.sched_getaffinity(0)),
    "drawn": getattr(sys.modules.get("numpy.random"), "random", float)(),
}
print(json.dumps(told), flush=True)
print("to the log, too", file=sys.stderr, flush=True)
match os.environ.get("BANYAN_END", ""):
    case "":
        from services.chassis.process.parent_death import tie_to_parent

        tie_to_parent()
        print("waits", flush=True)
        time.sleep(60)
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    case status:
        sys.exit(int(status))
