"""A module that computes in a thread, and tells how many cores each of its threads may use."""

import json
import os
import sys
import threading

told: dict[str, float] = {"imported": "torch" in sys.modules}


def compute() -> None:
    """Compute with all threads."""
    import torch

    torch.randn(4_000_000).relu()
    told["drawn"] = float(torch.rand(1))
    told["compute"] = len(os.sched_getaffinity(0))


thread = threading.Thread(target=compute)
thread.start()
thread.join()
told["main"] = len(os.sched_getaffinity(0))
print(json.dumps(told), flush=True)
