"""Scorers that hang, crash, lie and break out, each in a real child process."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Repair, Scored, Unscorable
from services.verifier.sandbox import child, worker
from services.verifier.sandbox.confinement import landlock, processes
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec, Worker
from services.verifier.scoring import Scoring

LIMITS = Limits(deadline_s=1.0, memory_mb=256, file_mb=4)
ROOT = os.geteuid() == 0


@pytest.fixture
async def pool(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    pool = Pool(LIMITS)
    yield pool
    await pool.close()


async def score(pool: Pool, function: str, completion: str = "x", **row):
    return (await pool.score(ScorerSpec(f"rewards:{function}", {}), completion, row)).outcome


async def test_a_reward_function_scores(pool):
    assert await score(pool, "exact", " 7\n", answer=7) == Scored(1.0)
    assert await score(pool, "exact", "8", answer=7) == Scored(0.0)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raises", "EXCEPTION: ValueError: cannot read x"),
        ("half", "EXCEPTION: ValueError: ?"),
        ("unsayable", "EXCEPTION: an error that cannot be shown"),
        ("forged_nan", "EXCEPTION: the scorer's answer cannot be read"),
        ("forged_infinity", "EXCEPTION: the scorer's answer cannot be read"),
        ("forged_list", "EXCEPTION: the scorer's answer cannot be read"),
        ("many_parts", "TOO_LARGE: the scorer gave 60000 parts; at most 64 are kept"),
        ("nan", "NOT_A_NUMBER"),
        ("text", "NOT_A_NUMBER"),
        ("huge", "TOO_LARGE: the scorer gave -1e+200, {}; rewards lie within ±1e+100"),
        ("part_nan", "EXCEPTION: the scorer's answer cannot be sent"),
        ("part_of_a_long_name", "TOO_LARGE: the scorer's answer has 2000"),
    ],
)
async def test_no_fault_of_a_scorer_is_a_reward_of_zero_and_the_next_score_is_right(
    pool, function, reason
):
    outcome = await score(pool, function)
    assert isinstance(outcome, Unscorable)
    assert outcome.reason.startswith(reason)
    assert await score(pool, "exact", "7", answer=7) == Scored(1.0)


async def test_what_a_scorer_prints_changes_nothing(pool):
    assert [await score(pool, "prints") for _ in range(2)] == [Scored(0.25)] * 2


async def test_what_a_scorer_prints_is_logged_up_to_a_length(pool, caplog):
    caplog.set_level("INFO")
    assert await score(pool, "prints_much", "7\nfake line") == Scored(1.0)
    said = [r.getMessage() for r in caplog.records if "printed" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith(
        "scorer rewards:prints_much printed '7\\nfake line\\nxxx"
    )
    assert 2_000 < len(said[0]) < 2_100


@pytest.mark.parametrize(("text", "times"), [("x", 16_385), ("x", 17 << 20), ("\ud83d", 1)])
async def test_a_repair_that_cannot_be_sent_costs_no_value(pool, caplog, text, times):
    """Also one that is too large for a frame of the child."""
    assert await score(pool, "mends", text="so", times=1) == Scored(0.25, {}, Repair(0, "so", 1, 1))
    assert not caplog.records
    assert await score(pool, "mends", text=text, times=times) == Scored(0.25)
    assert "a repair of scorer 'rewards:mends' is left out" in caplog.text


async def test_a_scorer_may_print_in_every_way(pool, caplog):
    caplog.set_level("INFO")
    assert await score(pool, "prints_in_every_way") == Scored(1.0)
    assert "printed 'bytes text utf-8 '" in caplog.text


async def test_one_score_cannot_change_the_next(pool):
    assert [await score(pool, "count") for _ in range(3)] == [Scored(1.0)] * 3
    assert [await score(pool, "leaves_file") for _ in range(2)] == [Scored(0.0)] * 2


async def test_the_environment_is_empty(pool, monkeypatch):
    monkeypatch.setenv("BANYAN_SECRET", "x")
    assert await score(pool, "environment") == Scored(0.0)


async def test_a_user_function_may_start_processes_but_not_without_end(pool):
    assert await score(pool, "starts_process") == Scored(5.0)
    bomb = await score(pool, "fork_bomb")
    assert isinstance(bomb, Scored)
    assert 1 <= bomb.value <= LIMITS.processes


async def test_nothing_that_a_scorer_started_outlives_it(pool, eventually):
    seconds = f"77777.{os.getpid()}{time.time_ns()}"  # of this test alone
    assert await score(pool, "daemon", seconds) == Scored(1.0)
    await eventually(lambda: not _running(seconds), 5.0, "the daemon's end")


def _running(argument: str) -> bool:
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and argument.encode() in (
                folder / "cmdline"
            ).read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


async def test_there_is_no_network(pool):
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcome = await score(pool, "connects", str(server.getsockname()[1]))
    assert isinstance(outcome, Unscorable)
    assert "PermissionError" in outcome.reason


async def test_the_operator_may_allow_the_network_to_user_functions(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    pool = Pool(Limits(deadline_s=5.0, network=True))
    asks = ScorerSpec("rewards:connects", {}, network=True)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            assert (await pool.score(asks, port, {})).outcome == Scored(1.0)
            assert isinstance(await score(pool, "connects", port), Unscorable)  # it did not ask
    finally:
        await pool.close()


async def test_what_the_operator_does_not_allow_is_refused(pool, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "open")
    for more, refused in (({"network": True}, "NETWORK=1"), ({"secrets": ("TEST_KEY",)}, "TEST_K")):
        with pytest.raises(InvalidInput, match=refused):
            await pool.score(ScorerSpec("rewards:exact", {}, **more), "7", {"answer": 7})


async def test_a_function_gets_the_secrets_that_its_recipe_names(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    monkeypatch.setenv("TEST_KEY", "open")
    monkeypatch.setenv("OTHER_KEY", "shut")
    pool = Pool(Limits(deadline_s=5.0, secrets=("TEST_KEY", "OTHER_KEY")), width=1)
    try:
        spec = ScorerSpec("rewards:opens", {}, secrets=("TEST_KEY",))
        assert (await pool.score(spec, "x", {})).outcome == Scored(1.0)
    finally:
        await pool.close()


@pytest.mark.skipif(not ROOT, reason="only root can give a process another user")
async def test_a_root_verifier_scores_as_users_that_nobody_else_is(pool):
    """Each warm child's attempts have a user of their own: the kernel counts processes by user."""
    users = {(await score(pool, function)).value for function in ("user", "user_group")}
    assert len(users) == 2 and min(users) >= 60_000


async def test_a_user_function_cannot_kill_its_verifier(pool):
    """It may not, or in a process namespace of its own the process does not exist."""
    said = (await score(pool, "kills", str(os.getpid()))).reason
    assert "PermissionError" in said or "ProcessLookupError" in said


@pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")
async def test_only_named_folders_can_be_read_and_none_written(pool, tmp_path):
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in ("/etc/passwd", str(secret), f"/proc/{os.getpid()}/environ"):
        assert "PermissionError" in (await score(pool, "reads", path)).reason
    assert "PermissionError" in (await score(pool, "writes", str(tmp_path / "new"))).reason
    assert (await score(pool, "reads", __file__)) == Scored(float(Path(__file__).stat().st_size))


async def test_folders_that_the_operator_names_can_be_read(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    (tmp_path / "data").write_text("four")
    tmp_path.chmod(0o755)  # its parent stays closed, and is opened in the child's own mounts
    pool = Pool(Limits(deadline_s=5.0, readable=(str(tmp_path),)))
    try:
        assert await score(pool, "reads", str(tmp_path / "data")) == Scored(4.0)
    finally:
        await pool.close()


async def test_a_function_that_is_not_there_is_named(pool):
    with pytest.raises(InvalidInput, match="no attribute 'nothing'"):
        await score(pool, "nothing")
    outcome = (await Scoring(pool).score(ScorerSpec("no_such_module:f", {}), "x", {})).outcome
    assert isinstance(outcome, Unscorable)
    assert "PYTHONPATH" in outcome.reason


async def test_a_module_that_fails_to_import_is_named(pool, tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("import sys; print('noise'); sys.exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match="SystemExit: 3"):
        await pool.score(ScorerSpec("broken_rewards:f", {}), "x", {})


async def test_too_large_a_completion_is_unscorable(pool):
    outcome = (
        await Scoring(pool).score(ScorerSpec("rewards:exact", {}), "x" * (17 << 20), {"answer": 1})
    ).outcome
    assert isinstance(outcome, Unscorable)
    assert "limit" in outcome.reason


def warm(child):
    """Return the process id of a guard's warm child."""
    (found,) = processes.below(child._process.pid)
    return found


async def test_a_child_that_is_killed_is_replaced_without_a_word(pool):
    assert await score(pool, "exact", "7", answer=7) == Scored(1.0)
    (lane,) = pool._lanes.values()
    os.kill(warm(lane._idle[0]), 9)
    assert await score(pool, "exact", "7", answer=7) == Scored(1.0)


async def test_a_child_that_hangs_is_killed_and_reported(monkeypatch):
    monkeypatch.setattr(worker, "_GRACE_S", 0.2)
    monkeypatch.setattr(worker, "ROUNDS", 1)
    child = await Worker.start(ScorerSpec("number", {}), LIMITS)
    os.kill(warm(child), 19)
    began = time.monotonic()
    with pytest.raises(worker.ChildDied, match="no answer in 1 s"):
        await child.score({"completion": "7", "row": {"answer": 7}})
    assert time.monotonic() - began < 5
    await child.close()
    assert child._process.returncode == -9  # as its guard says
    assert not Path(child._folder).exists()


async def test_children_are_bounded_and_reused(monkeypatch, eventually):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    pool = Pool(LIMITS, width=2, lanes=2)
    try:
        await asyncio.gather(*(score(pool, "exact", "7", answer=7) for _ in range(20)))
        (lane,) = pool._lanes.values()
        assert len(lane._idle) == 2
        first = [w._process.pid for w in lane._idle]
        await score(pool, "count")
        await score(pool, "nan")
        assert len(pool._lanes) == 2
        await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in first))
    finally:
        await pool.close()


async def test_a_score_whose_child_hangs_is_given_by_another(pool, monkeypatch):
    monkeypatch.setattr(worker, "_GRACE_S", 0.5)
    monkeypatch.setattr(worker, "ROUNDS", 1)
    assert await score(pool, "exact", "7", answer=7) == Scored(1.0)
    (lane,) = pool._lanes.values()
    os.kill(warm(lane._idle[0]), 19)
    assert await score(pool, "exact", "7", answer=7) == Scored(1.0)


ORPHAN = """
import os, sys
from methods.filter.number import Number
from services.verifier.sandbox import attempt, limits
reply, inner = os.pipe()
parent = os.getpid() if sys.argv[1] == "there" else 1 << 22
keep = attempt.Confinement(limits.Limits(), 0, None, None, True, True, False, parent)
process = os.fork()
if process == 0:
    attempt.run(Number(), {"completion": "7", "row": {"answer": "7"}}, inner, keep, os.getcwd())
os.close(inner)
print(len(os.read(reply, 1000)) > 0, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.mark.parametrize(("parent", "said"), [("there", "True 0"), ("gone", "False 1")])
def test_an_attempt_whose_parent_is_gone_does_not_begin(tmp_path, parent, said):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", ORPHAN, parent]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == said, done.stderr


async def test_the_folders_of_scores_may_lie_where_only_their_owner_goes(
    pool, monkeypatch, tmp_path
):
    """TMPDIR in a home that is closed to others, as root's is."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert await score(pool, "leaves_file") == Scored(0.0)
    assert await score(pool, "exact", "7", answer=7) == Scored(1.0)


@pytest.mark.skipif(not ROOT, reason="only root has groups to lose")
async def test_a_score_has_none_of_its_verifiers_groups(pool):
    before = os.getgroups()
    os.setgroups([0, 4])
    try:
        assert await score(pool, "groups") == Scored(0.0)
    finally:
        os.setgroups(before)


def test_a_child_whose_folder_cannot_be_emptied_is_to_be_ended(tmp_path, monkeypatch):
    def leaves(_, request, folder):
        inner = Path(folder, "d")
        inner.mkdir()
        for number in range(request["files"]):
            (inner / str(number)).touch()
        return {"value": 1.0}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(child, "_MAX_ENTRIES", 3)
    monkeypatch.setattr(child.Forks, "_forked", leaves)
    forks = object.__new__(child.Forks)
    forks._scorer = forks._user = None
    assert forks.attempted({"row": {}, "files": 2}) == {"value": 1.0}
    assert not list(tmp_path.iterdir())
    assert forks.attempted({"row": {}, "files": 9}) == {"value": 1.0, "spent": True}
