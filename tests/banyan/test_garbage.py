"""No garbage is collected while a process imports, and what it imported is not visited again."""

import subprocess
import sys

CODE = """
import gc
from banyan.runtime import garbage

try:
    with garbage.paused():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
        raise ImportError("there is no such library")
except ImportError:
    pass
assert gc.isenabled() and gc.get_freeze_count() > 1000
assert not any(item is kept for item in gc.get_objects())
"""


def test_the_collector_is_off_within_and_on_again_whatever_happens() -> None:
    """In a process of its own: what is frozen stays so."""
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
