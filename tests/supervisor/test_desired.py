"""The supervisor's desired processes: started, stopped and given their cores as the store says."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import NotFound, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.supervisor import Supervisor
from tests.supervisor.supervised import (
    DEAF,
    RECIPE,
    SLEEPS,
    FakeRunStore,
    alive,
    pids,
    supervised,
    workers,
)


def _written(supervisor: Supervisor) -> dict[str, int]:
    """Return the written number of threads of the first process of each kind."""
    folder = supervisor.fleet.state.path / "threads"
    return {file.name: int(file.read_text()) for file in folder.glob("*-0") if file.is_file()}


async def test_what_is_wanted_is_started_and_what_is_not_is_stopped(
    tmp_path: Path, eventually: Any
) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}) as supervisor:
        store.want(("rollout", 2), ("learner", 1))
        await eventually(
            lambda: len(pids(supervisor, "rollout")) == 2 and len(pids(supervisor, "learner")) == 1
        )
        store.want()
        await eventually(
            lambda: not pids(supervisor, "rollout") and not pids(supervisor, "learner")
        )


async def test_a_process_wanted_again_while_its_predecessor_waits_to_restart_is_one(
    tmp_path: Path, eventually: Any
) -> None:
    store, log = FakeRunStore(), tmp_path / "starts"
    code = f"import os, time; open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    async with supervised(tmp_path, store, {"learner": code}, longest_s=1.0) as supervisor:
        supervisor._backoff = Backoff(first_s=1.0)
        store.want(("learner", 1))
        await eventually(lambda: log.exists() and log.read_text().count("\n") == 1)
        # On a busy machine it writes before its supervisor says that it runs.
        await eventually(lambda: pids(supervisor, "learner"))
        os.kill(pids(supervisor, "learner")[0], signal.SIGKILL)
        await eventually(lambda: rs.PROCESS_EVENT_EXITED in store.events())
        store.want()
        await eventually(lambda: supervisor.wanted == {"nats", "treestore", "verifier", "gateway"})
        store.want(("learner", 1))
        await eventually(lambda: log.read_text().count("\n") == 2)
        await asyncio.sleep(1.2)  # the back-off of the first one
        started = [int(pid) for pid in log.read_text().split()]
        assert len(started) == 2 and [p for p in started if alive(p)] == pids(supervisor, "learner")


async def test_a_loop_that_breaks_is_a_failure(tmp_path: Path, eventually: Any) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}) as supervisor:
        store.unknown_run = True
        store.want(("learner", 1))
        await eventually(supervisor.failure.done)
        assert "start and stop learner-r-0 failed: NotFound: there is no run 'r'" in str(
            supervisor.failure.result()
        )


async def test_a_slow_end_of_one_run_does_not_hold_up_the_start_of_another(
    tmp_path: Path, eventually: Any
) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {"learner": DEAF}) as supervisor:
        store.want(("learner@old", 1))
        await eventually(lambda: any("deaf" in c.tail() for c in workers(supervisor, "learner")))
        (old,) = workers(supervisor, "learner")
        store.want(("rollout@new", 1))  # the learner of the old one has a minute for its checkpoint
        await eventually(lambda: len(pids(supervisor, "rollout")) == 1, 5.0)
        assert old.running and old.name not in supervisor.wanted
        old.signal(signal.SIGKILL)


async def test_a_process_that_is_wanted_again_waits_for_its_own_end(
    tmp_path: Path, eventually: Any
) -> None:
    store, codes = FakeRunStore(), {"learner": DEAF}
    async with supervised(tmp_path, store, codes) as supervisor:
        store.want(("learner", 1))
        await eventually(lambda: any("deaf" in c.tail() for c in workers(supervisor, "learner")))
        (first,) = workers(supervisor, "learner")
        store.want(("rollout", 1))
        await eventually(lambda: first.name not in supervisor.wanted)
        store.want(("learner", 1), ("rollout", 2))
        await eventually(lambda: len(pids(supervisor, "rollout")) == 2)
        # Two learners of a run would write the same checkpoints.
        assert pids(supervisor, "learner") == [first.pid]
        codes["learner"] = SLEEPS  # a deaf one would hold up the end of this test
        first.signal(signal.SIGKILL)
        await eventually(lambda: pids(supervisor, "learner") not in ([], [first.pid]))


async def test_runs_divide_the_cores_unless_they_must_repeat_themselves(
    tmp_path: Path, eventually: Any
) -> None:
    store, threads_of = FakeRunStore(), dict[str, int]()
    async with supervised(tmp_path, store, {}) as supervisor:
        plain = supervisor.fleet.worker

        def recorded(run_id: str, *arguments: Any, threads: int, **named: Any) -> Child:
            threads_of[run_id] = threads
            return plain(run_id, *arguments, threads=threads, **named)

        object.__setattr__(supervisor.fleet, "worker", recorded)
        store.recipe = RECIPE.replace('"threads": 1', '"threads": "auto"')
        cores = len(os.sched_getaffinity(0))
        store.want(("learner@a", 1))
        await eventually(lambda: "a" in threads_of)
        store.want(("learner@a", 1), ("learner@b", 1))
        await eventually(lambda: "b" in threads_of)
        store.recipe = store.recipe.replace("{", '{"deterministic": true, ', 1)
        store.want(("learner@a", 1), ("learner@b", 1), ("learner@c", 1))
        await eventually(lambda: "c" in threads_of)
    assert threads_of == {"a": cores, "b": max(1, cores // 2), "c": cores}


async def test_runs_that_run_already_divide_the_cores_anew_as_others_begin_and_end(
    tmp_path: Path, eventually: Any
) -> None:
    store, cores = FakeRunStore(), len(os.sched_getaffinity(0))
    store.recipe = RECIPE.replace('"threads": 1', '"threads": "auto"')
    async with supervised(tmp_path, store, {}) as supervisor:
        store.want(("learner@a", 1))
        await eventually(lambda: _written(supervisor) == {"learner-a-0": cores})
        store.want(("learner@a", 1), ("learner@b", 1))
        await eventually(
            lambda: (
                _written(supervisor)
                == dict.fromkeys(("learner-a-0", "learner-b-0"), max(1, cores // 2))
            )
        )
        store.want(("learner@b", 1))
        await eventually(lambda: _written(supervisor) == {"learner-b-0": cores})


async def test_processes_of_one_run_count_once(tmp_path: Path, eventually: Any) -> None:
    store, cores = FakeRunStore(), len(os.sched_getaffinity(0))
    store.recipe = RECIPE.replace('"threads": 1', '"threads": "auto"')
    async with supervised(tmp_path, store, {}) as supervisor:
        store.want(("learner@a", 1), ("rollout@a", 1))
        await eventually(
            lambda: _written(supervisor) == {"learner-a-0": cores, "rollout-a-0": cores}
        )


@pytest.mark.parametrize("trouble", ["recipe away", "run gone", "no file"])
async def test_a_fault_of_one_run_leaves_the_others_their_share(
    tmp_path: Path,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    store, cores, wrong = FakeRunStore(), len(os.sched_getaffinity(0)), dict[str, Exception]()
    store.recipe = RECIPE.replace('"threads": 1', '"threads": "auto"')
    async with supervised(tmp_path, store, {}) as supervisor:
        assert supervisor.store is not None
        recipe = supervisor.store.recipe

        async def read(run_id: str) -> dict[str, Any]:
            if run_id in wrong:
                raise wrong[run_id]
            return await recipe(run_id)

        monkeypatch.setattr(supervisor.store, "recipe", read)
        store.want(("learner@a", 1))
        await eventually(
            lambda: _written(supervisor) == {"learner-a-0": cores} and pids(supervisor, "learner")
        )
        if trouble == "no file":
            path = supervisor.fleet.state.threads("learner-a-0")
            path.unlink()
            path.mkdir()
        else:
            away, gone = TemporaryError("the store is away"), NotFound("no run a")
            wrong["a"] = away if trouble == "recipe away" else gone
        store.want(("learner@a", 1), ("learner@b", 1))
        if trouble == "recipe away":  # all shares are then computed again
            await eventually(lambda: "the store is away" in caplog.text)
            wrong.clear()
        await eventually(lambda: _written(supervisor).get("learner-b-0") == max(1, cores // 2))
        assert supervisor._watcher is not None and not supervisor._watcher.done()


async def test_a_file_that_cannot_be_written_or_removed_ends_nothing(
    tmp_path: Path, eventually: Any
) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}) as supervisor:
        (supervisor.fleet.state.path / "threads").write_text("no folder")
        store.want(("learner@a", 1))
        await eventually(lambda: "learner-a-0" in supervisor.children)
        child = supervisor.children["learner-a-0"]
        store.want()
        await eventually(lambda: child.state == "stopped" and not supervisor._desired.settling)
        assert not supervisor.failure.done()
