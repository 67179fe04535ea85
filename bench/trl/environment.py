""".venv-trl: TRL in an environment of its own, made if missing."""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-trl"
LOCK = ROOT / "requirements-trl.lock"
_MARK = ".installed"
_TORCH = "torch==2.13.0"  # before all else: resolved with anything it could become a CUDA build


def python() -> Path:
    """Return its interpreter."""
    binary, mark = FOLDER / "bin" / "python", FOLDER / _MARK
    wanted = hashlib.blake2b(LOCK.read_bytes(), digest_size=8).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        print(f"making {FOLDER.name} (0.9 GB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        for what in ([_TORCH], ["-r", str(LOCK)]):
            subprocess.run([str(binary), "-m", "pip", "install", "--quiet", *what], check=True)
        mark.write_text(wanted)
    return binary


if __name__ == "__main__":
    print(python())
