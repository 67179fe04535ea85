"""Attacks of a score, as root, as another user, and as another user without namespaces (a pod)."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import scoring_process

sys.path.pop(0)

pytestmark = pytest.mark.slow  # each attack is a process
ROOT = os.geteuid() == 0
MACHINES: dict[str, dict[str, Any]] = {
    "root": {},
    "user": {"user": True},
    "pod": {"user": True, "lacks": ["namespaces"]},
}
# Each got through as root or as another user before; `owner`, `parents_…` and `niceness` reach
# other processes of the user.
REFUSED = (
    *("chmod", "fchmod", "chown", "utime", "setxattr", "truncate"),
    *("shm", "msg", "sem", "mq", "keyring"),
    *("unshare", "setns", "clone_newuser", "clone3", "fsopen"),
    *("memfd", "pidfd", "ptrace", "io_uring", "inotify", "newer_call"),
    *("parents_limits", "parents_cores", "niceness", "owner", "sockets_owner"),
    *("flags", "project_id", "generation", "hint", "lease", "notified", "datagram"),
)
WITHHELD = (
    "reads .env",
    "reads rows.jsonl",
    "reads .banyan/secret",
    "reads prod.env",
    "reads private.txt",
    "reads linked.txt",
    "reads id_ed25519",
    "reads credentials.json",
    "reads data/secrets.yaml",
    "reads cache/datasets/org___rows/train.arrow",
)
ALLOWED = {
    "reads open.txt": 4.0,
    "reads data/words.txt": 5.0,
    "imports other": 3.0,
    "moves": 1.0,
    "polite": 5.0,
    "loops": 4.0,
    "deep": 1.0,
    "closed_folders": 1.0,
    "many_files": 1.0,
}


def project(folder: Path) -> Path:
    """Make a project's folder as users have it: the module beside secrets, rows and data."""
    (folder / ".banyan").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "cache/datasets/org___rows").mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "attacks.py", folder)
    texts = {
        "open.txt": "four",
        ".env": "S",
        "rows.jsonl": "{}",
        ".banyan/secret": "S",
        "prod.env": "S",
    }
    texts |= {"other.py": "VALUE = 3", "private.txt": "S", "data/words.txt": "words"}
    texts |= {"id_ed25519": "S", "credentials.json": "{}", "data/secrets.yaml": "S"}
    texts |= {"cache/datasets/org___rows/train.arrow": "S"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "linked.txt").hardlink_to(folder / "rows.jsonl")
    for path in (*folder.parents[:2], folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "private.txt").chmod(0o600)
    return folder


def owned(folder: Path, user: bool) -> Path:
    """Give the folder to the user that scores."""
    for path in (folder, *folder.rglob("*")) if user and ROOT else ():
        os.chown(path, scoring_process.NOBODY, scoring_process.NOBODY)
    return folder


@pytest.fixture(scope="module", params=[name for name in MACHINES if name != "root" or ROOT])
def tried(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """Return the outcomes of all attacks, made in one lane, and the folder afterwards."""
    how = MACHINES[request.param]
    folder = owned(project(tmp_path_factory.mktemp("project") / "p"), "user" in how)
    words = [*REFUSED, *WITHHELD, *ALLOWED, "copies", "capabilities"]
    jobs = [("attacks:attack", word) for word in words]
    spec = {"withheld": ["rows.jsonl", "hf://org/rows"]}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_HOME", str(folder / "cache"))
        found = scoring_process.scored(jobs, folder, limits={"deadline_s": 10.0}, spec=spec, **how)
    return dict(zip(words, found, strict=True)), folder


@pytest.mark.parametrize("attack", REFUSED)
def test_a_score_changes_and_shares_nothing(
    tried: tuple[dict[str, Any], Path], attack: str
) -> None:
    outcome = tried[0][attack]
    refused = (
        "Function not implemented"
        if attack in ("clone3", "newer_call")
        else "Operation not permitted"
    )
    assert isinstance(outcome, str) and refused in outcome


@pytest.mark.parametrize("attack", WITHHELD)
def test_secrets_and_rows_beside_the_module_cannot_be_read(
    tried: tuple[dict[str, Any], Path], attack: str
) -> None:
    outcome = tried[0][attack]
    assert isinstance(outcome, str) and "Permission denied" in outcome


@pytest.mark.parametrize("word", ALLOWED)
def test_what_a_scorer_needs_it_has(tried: tuple[dict[str, Any], Path], word: str) -> None:
    """Its data and modules, processes, folders of any depth; nothing of them stays."""
    assert tried[0][word] == ALLOWED[word]


def test_modes_of_its_own_files_are_left_to_a_user_that_has_no_others(
    tried: tuple[dict[str, Any], Path],
) -> None:
    """So root's verifiers can score compilers; elsewhere chmod reaches all files of the user."""
    own = tried[1].stat().st_uid == 0
    assert tried[0]["copies"] == 1.0 if own else "Operation not permitted" in tried[0]["copies"]


def test_a_score_has_no_capabilities(tried: tuple[dict[str, Any], Path]) -> None:
    assert tried[0]["capabilities"] == 0.0


def test_the_folder_is_as_it_was_and_nothing_of_a_score_stays(
    tried: tuple[dict[str, Any], Path],
) -> None:
    assert not list(scoring_process.scratch(tried[1]).iterdir())
    found = (tried[1] / "open.txt").stat()
    assert (found.st_mode & 0o777, found.st_size) == (0o644, 4) and not os.listxattr(
        tried[1] / "open.txt"
    )


@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "root" or ROOT])
def test_a_bomb_hits_its_own_score_alone_and_within_its_deadline(
    machine: str, tmp_path: Path
) -> None:
    how = MACHINES[machine]
    folder = owned(project(tmp_path / "p"), "user" in how)
    jobs = [
        ("attacks:attack", word)
        for word in ["polite"] * 4 + ["bomb"] + ["polite"] * 10 + ["bomb"] + ["polite"] * 4
    ]
    found = scoring_process.scored(jobs, folder, limits={"deadline_s": 2.0}, together=True, **how)
    assert [outcome for outcome in found if outcome != 5.0] == [0.0] * 2


@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "root" or ROOT])
async def test_a_daemon_ends_with_a_verifier_that_is_killed(
    machine: str, tmp_path: Path, eventually: Any
) -> None:
    how = MACHINES[machine]
    folder = owned(project(tmp_path / "p"), "user" in how)
    mark = f"{os.getpid()}77.25"
    order = {
        "jobs": [("attacks:attack", f"daemon {mark}")],
        "user": "user" in how,
        "lacks": how.get("lacks", []),
    }
    order |= {"limits": {"deadline_s": 60.0}, "spec": {}, "width": 1, "together": False}
    verifier = subprocess.Popen(
        scoring_process.command(order), cwd=folder, env=scoring_process.environment(folder)
    )
    try:
        await eventually(lambda: _running(mark), 20.0, "the daemon's start")
    finally:
        verifier.send_signal(signal.SIGKILL)
        verifier.wait(10)
    await eventually(lambda: not _running(mark), 5.0, "the daemon's end")
    await eventually(
        lambda: not list(scoring_process.scratch(folder).iterdir()), 5.0, "the end of its folder"
    )


def _running(argument: str) -> bool:
    """Return True if /bin/sleep runs with this argument, which is this test's own."""
    for folder in Path("/proc").iterdir():
        try:
            if (
                folder.name.isdigit()
                and (folder / "cmdline").read_bytes() == f"/bin/sleep\0{argument}\0".encode()
            ):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize(
    ("lacking", "named"), [("landlock", "Landlock"), ("seccomp", "seccomp filters")]
)
def test_a_machine_that_cannot_confine_scores_nothing_unless_it_is_allowed(
    lacking: str, named: str, tmp_path: Path
) -> None:
    folder = project(tmp_path / "p")
    jobs = [("attacks:attack", "polite")]
    refused = scoring_process.scored(jobs, folder, lacks=[lacking])
    assert f"this machine cannot confine scorers: it lacks {named}" in refused[0]
    assert "allow_unconfined_scorers: true" in refused[0]
    assert scoring_process.scored(jobs, folder, lacks=[lacking], spec={"unconfined": True}) == [5.0]
    assert scoring_process.scored(jobs, folder, lacks=[lacking], limits={"unconfined": True}) == [
        5.0
    ]
