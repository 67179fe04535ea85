"""`python -m bench.textworld`: make what recipes/textworld.yaml needs, unless it is there.

Games come from the interpreter that has TextWorld, the model from this one. A folder is kept under
the digest of all that makes it, so that it is made anew when that changes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from banyan.digest import blake
from banyan.runtime import torch_environment

ROOT = Path(__file__).parents[2]
FOLDER = Path("~/.cache/banyan/textworld").expanduser()
PYTHON = ROOT / ".venv-textworld" / "bin" / "python"
_MADE_OF = ("methods/environment/textworld.py", "requirements-textworld.lock")
_MARK = "made-of"


def digest() -> str:
    """Return the digest of the files that make games and model."""
    files = [ROOT / name for name in _MADE_OF] + sorted(Path(__file__).parent.glob("*.py"))
    return blake(b"".join(file.read_bytes() for file in files)).hex()[:16]


def make(folder: Path) -> None:
    """Write rows, paths and model into a folder. Raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    torch_environment.settle(environment)
    for python, part in ((str(PYTHON), "games"), (sys.executable, "warm_start")):
        began = time.monotonic()
        command = [python, "-m", f"bench.textworld.{part}", str(folder)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    """Make the folder, or say that it is there."""
    if not PYTHON.exists():
        sys.exit(f"there is no {PYTHON}; `make environments NAME=textworld` makes it")
    mark = FOLDER / _MARK
    if mark.is_file() and mark.read_text() == digest():
        print(f"{FOLDER} is there")
        return
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=FOLDER.parent))
    try:
        make(made)
        (made / _MARK).write_text(digest())
        made.chmod(0o755)
        shutil.rmtree(FOLDER, ignore_errors=True)
        made.rename(FOLDER)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[2]} failed, see above")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"{FOLDER} is made")


if __name__ == "__main__":
    main()
