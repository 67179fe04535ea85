"""The supervisor's keeping of processes: restarts, giving up, and starts that end."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import DeadlineMissed
from banyan.runtime import torch_environment
from banyan.runtime.ports import free_port
from banyan.v1 import runstore_service_pb2 as rs
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands
from services.supervisor.state import StateFolder
from services.supervisor.supervisor import Supervisor
from tests.supervisor.supervised import (
    DEAF,
    FakeRunStore,
    PlainProcesses,
    change_workers,
    supervised,
    supervisor_of,
    workers,
)


async def test_a_given_up_process_is_reported_until_the_store_hears_it(
    tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {"learner": "raise SystemExit(2)"}) as supervisor:
        plain, events = supervisor._report, list[int]()

        async def impatient(child: Child, event: int, patience_s: float = 0.0) -> bool:
            events.append(event)
            if event == rs.PROCESS_EVENT_GIVEN_UP and events.count(event) == 1:
                store.deaf = 1
            return await plain(child, event, 0.0)  # type: ignore[arg-type]

        monkeypatch.setattr(supervisor, "_report", impatient)
        store.want(("learner", 1))
        await eventually(lambda: rs.PROCESS_EVENT_GIVEN_UP in store.events())
        assert events.count(rs.PROCESS_EVENT_GIVEN_UP) == 2


async def test_a_process_that_dies_slowly_for_ever_is_given_up_unless_the_run_gets_on(
    tmp_path: Path, eventually: Any
) -> None:
    store = FakeRunStore()
    async with supervised(
        tmp_path, store, {"learner": "raise SystemExit(1)"}, longest_s=0.05, limit=4, window_s=0.0
    ):
        store.want(("learner", 1))

        def gets_on() -> bool:
            store.step += 1
            return len(store.reports) >= 16

        await eventually(gets_on)
        assert rs.PROCESS_EVENT_GIVEN_UP not in store.events()
        await eventually(lambda: rs.PROCESS_EVENT_GIVEN_UP in store.events())


async def test_a_process_that_cannot_be_started_is_tried_again_and_then_given_up(
    tmp_path: Path, eventually: Any
) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}, limit=3) as supervisor:
        change_workers(supervisor, lambda child: setattr(child, "command", ["/nowhere/python"]))
        store.want(("learner", 1))
        await eventually(lambda: rs.PROCESS_EVENT_GIVEN_UP in store.events())
        assert store.reports[-1].exit_status == 126
        assert not supervisor.failure.done()


def test_a_learner_is_told_how_many_ranks_it_is_to_have(tmp_path: Path) -> None:
    """It starts them itself, and must know before it loads torch if the cores are its own."""
    fleet = ProcessCommands(
        StateFolder(tmp_path, dict.fromkeys(("nats", "treestore", "verifier"), 1))
    )
    learner, rollout = (
        fleet.worker("r", service, 0, threads=4, port=1, ranks=2)
        for service in ("learner", "rollout")
    )
    assert learner.env["BANYAN_THREADS_FILE"] == str(fleet.state.threads("learner-r-0"))
    assert learner.env["BANYAN_RANKS"] == "2" and "BANYAN_RANKS" not in rollout.env


def test_only_what_imports_torch_on_cores_of_its_own_is_forked(tmp_path: Path) -> None:
    """Several ranks share the cores; other engines need no torch, or start processes with it."""
    state = StateFolder(tmp_path, dict.fromkeys(("nats", "treestore", "verifier"), 1))

    def forked(service: str, threads: int = 1, **needs: Any) -> tuple[bool, bool]:
        one = ProcessCommands(state).worker("r", service, 0, threads=threads, port=1, **needs)
        return one.warm, "OMP_PROC_BIND" in one.env

    cores = len(torch_environment.CORES)
    assert forked("learner", cores, engine="vllm") == (True, True)
    assert forked("learner", cores + 1) == (True, False)
    assert forked("learner", cores, ranks=2) == (False, False)
    assert forked("rollout", cores, ranks=2, engine="torch") == (True, True)
    assert forked("rollout", cores, engine="scripted") == (False, False)
    assert forked("rollout", cores, engine="vllm") == (False, False)


async def test_a_node_that_still_loads_its_model_does_not_hold_up_the_end(
    tmp_path: Path, eventually: Any
) -> None:
    """Torch is deaf to signals while it loads; only a serving learner saves a checkpoint."""
    store = FakeRunStore()
    async with supervised(tmp_path, store, {"learner": DEAF, "rollout": DEAF}) as supervisor:
        # No server listens at this port.
        change_workers(supervisor, lambda child: setattr(child, "health", "127.0.0.1:9"))
        store.want(("learner", 1), ("rollout", 1))
        await eventually(lambda: len(workers(supervisor)) == 2)
        await eventually(lambda: all("deaf" in c.tail() for c in workers(supervisor)))
        begun = time.monotonic()
        store.want()
        await eventually(lambda: not any(c.running for c in workers(supervisor)), 20.0)
        assert time.monotonic() - begun < 8.0


async def _starting(tmp_path: Path, code: str) -> tuple[Supervisor, "asyncio.Task[None]"]:
    """Return a supervisor whose treestore never serves, and its start."""
    state = StateFolder.open(tmp_path / "s")
    fleet = PlainProcesses(state)
    object.__setattr__(fleet, "codes", {"treestore": code})
    plain = fleet.base

    def deaf(service: str) -> Child:
        child = plain(service)
        child.health = f"127.0.0.1:{free_port()}" if service == "treestore" else ""
        return child

    object.__setattr__(fleet, "base", deaf)

    supervisor = supervisor_of(state, fleet, Backoff(first_s=0.05, limit=1000))
    return supervisor, asyncio.create_task(supervisor.start())


async def test_a_start_that_is_given_up_is_over_within_two_seconds(
    tmp_path: Path, eventually: Any
) -> None:
    supervisor, starting = await _starting(tmp_path, DEAF)
    await eventually(
        lambda: (
            "treestore" in supervisor.children and "deaf" in supervisor.children["treestore"].tail()
        )
    )
    begun = time.monotonic()
    starting.cancel()
    await asyncio.wait([starting])
    await supervisor.stop()
    assert time.monotonic() - begun < 2.0
    assert not any(child.running for child in supervisor.children.values())


async def test_a_process_that_dies_again_and_again_as_it_starts_is_named_with_its_last_words(
    tmp_path: Path, eventually: Any
) -> None:
    supervisor, starting = await _starting(
        tmp_path, "print('first'); raise SystemExit('treestore: no such planet')"
    )
    await eventually(
        lambda: (
            "treestore" in supervisor.children and len(supervisor.children["treestore"].exits) > 1
        ),
        20.0,
    )
    with pytest.raises(
        DeadlineMissed,
        match=r"ended \d+ times; its last words: treestore: no such planet \(.*log\)",
    ):
        await supervisor.await_ready("treestore", 0.1)
    starting.cancel()
    await asyncio.wait([starting])
    await supervisor.stop()
