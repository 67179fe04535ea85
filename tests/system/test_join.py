"""Joining from another process and another network: shared work, no losses, one-line errors."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.chassis.weights import file as weightfile
from services.gateway.join import tls
from tests.faults.audit import audit
from tests.faults.harness import recipe, tiny_model
from tests.faults.oracle.allowed import KILLED, NOTHING, Allowed
from tests.network import network as joined_network
from tests.system.joining import Training, command, joined, training
from tests.system.tiny import torch_recipe

STEPS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def waiting(model: Path, **changes: Any) -> dict[str, Any]:
    """Return a run that waits for its engine instead of computing: 8 prompts a step."""
    slow = {
        "engine": "scripted",
        "max_branches": 4,
        "engine_settings": {"accuracy": 0.5, "latency_s": 0.2},
    }
    base = recipe(
        model,
        name="join",
        resources=slow,
        control__groups_per_batch=8,
        eval={"samples": 0, "max_rows": 4},
    )
    return base | {"budget": {"steps": STEPS, "minutes": 5.0}} | changes


def clean(run: Training, steps: int = STEPS, allowed: Allowed = NOTHING) -> None:
    assert audit(run.database, run.run_id, steps, allowed) == []


async def seconds_of_training(run: Training) -> float:
    return await run.command.elapsed("evaluating after") - await run.command.elapsed("training")


@pytest.mark.slow
@pytest.mark.alone
async def test_a_joined_node_takes_trees_and_makes_the_run_faster(
    tmp_path: Path, model: Path
) -> None:
    async with training(tmp_path / "alone", waiting(model)) as run:
        assert await run.command.ends() == 0, run.command.output
        alone = await seconds_of_training(run)
        clean(run)
    async with (
        training(tmp_path / "both", waiting(model)) as run,
        joined(run, tmp_path / "node") as node,
    ):
        await run.command.says(r"members 2")
        assert await run.command.ends() == 0, run.command.output
        both = await seconds_of_training(run)
        assert await node.ends(20.0) == 0, node.output  # by itself
        clean(run)
    assert "the run is over" in node.output
    shown = await run.ask("runs", "show", run.run_id)
    assert shown["members"] == 0 and [n["joined"] for n in shown["nodes"]].count(True) == 1
    print(f"\ntraining alone {alone:.1f} s, with a joined node {both:.1f} s; trees {run.grown()}")
    assert run.by_joined() >= 8
    assert both < 0.85 * alone


@pytest.mark.slow
async def test_a_node_that_is_killed_loses_nothing(
    tmp_path: Path, model: Path, eventually: Any
) -> None:
    async with (
        training(tmp_path / "run", patient(model)) as run,
        joined(run, tmp_path / "node") as node,
    ):
        await eventually(lambda: bool(just_begun(run)), 90.0, "a tree in the joined node's hands")
        node.stop(signal.SIGKILL)
        await node.ends()
        orphans = {tree for (tree,) in just_begun(run)}
        assert await run.command.ends(240.0) == 0, run.command.output
        clean(run, 2, KILLED)
        epochs = dict(run.rows("select tree_id, claim_epoch from trees"))
        assert orphans and all(epochs[tree] > 1 for tree in orphans)  # somebody else grew them


@pytest.mark.slow
async def test_a_node_that_is_interrupted_hands_its_trees_back(
    tmp_path: Path, model: Path, eventually: Any
) -> None:
    async with (
        training(tmp_path / "run", patient(model)) as run,
        joined(run, tmp_path / "node") as node,
    ):
        await eventually(lambda: bool(just_begun(run)), 90.0, "a tree in the joined node's hands")
        node.stop(signal.SIGINT)
        assert await node.ends(20.0) == 0, node.output
        assert not just_begun(run) and "Traceback" not in node.output
        assert run.rows("select count(*) from trees where returns > 0") != [(0,)]
        members = (await run.ask("runs", "show", run.run_id))["nodes"]
        assert {n["joined"]: n["present"] for n in members} == {True: False, False: True}
        assert await run.command.ends(120.0) == 0, run.command.output
        clean(run, 2, KILLED)


@pytest.mark.slow
async def test_a_node_outlives_the_gateway_and_the_broker(
    tmp_path: Path, model: Path, eventually: Any
) -> None:
    async with (
        training(tmp_path / "run", waiting(model)) as run,
        joined(run, tmp_path / "node") as node,
    ):
        for service in ("gateway", "nats"):
            before = run.by_joined()
            await eventually(
                lambda before=before: run.by_joined() > before,
                60.0,
                "another tree of the joined node",
            )
            (victim,) = [p["pid"] for p in await run.ask("ps") if p["service"] == service]
            os.kill(victim, signal.SIGKILL)
        before = run.by_joined()
        await eventually(
            lambda: run.by_joined() > before, 60.0, "a tree after the broker was killed"
        )
        assert await run.command.ends(120.0) == 0, run.command.output
        assert await node.ends(20.0) == 0, node.output
        clean(run, allowed=KILLED)


def patient(model: Path) -> dict[str, Any]:
    """Return a run of two steps whose trees take more than a second each."""
    slow = {
        "engine": "scripted",
        "max_branches": 4,
        "engine_settings": {"accuracy": 0.5, "latency_s": 0.5},
    }
    return waiting(model, resources=slow, budget={"steps": 2, "minutes": 10.0})


def just_begun(run: Training) -> list[Any]:
    """Return the trees of a joined node that have their prompt and nothing more."""
    return run.rows(
        "select tree_id from trees where claim_node not in ('', 'rollout-0') and segments <= 1"
        " and closed_ms = 0"
    )


@pytest.mark.slow
async def test_what_cannot_join_says_why_in_one_message(tmp_path: Path, model: Path) -> None:
    async with training(
        tmp_path / "run", waiting(model, budget={"steps": 500, "minutes": 5.0})
    ) as run:
        secret, fingerprint = run.token.split(".")
        foreign = tls.identity(tmp_path / "elsewhere").fingerprint
        short = await run.ask("token", run.run_id, "--hours", "0.0003")
        refused = {
            "wrong or has expired; ask for a new one": (
                1,
                run.address,
                "0" * 32 + "." + fingerprint,
            ),
            "another gateway's, or somebody is in between": (1, run.address, f"{secret}.{foreign}"),
            "no gateway answers with TLS": (1, "127.0.0.1:1", run.token),
            "must be host:port": (2, "nonsense", run.token),
            "a join token is 32 hex digits": (2, run.address, "abc"),
            "give the token with --token": (2, run.address, ""),
        }
        for message, (status, address, token) in refused.items():
            await _refused(tmp_path, status, message, address, "--token", token)
        await asyncio.sleep(1.1)  # the short token's life, counted by the store's clock
        await _refused(tmp_path, 1, "wrong or has expired", run.address, "--token", short["token"])
        await _refused(
            tmp_path,
            2,
            "cannot read token file",
            run.address,
            "--token-file",
            str(tmp_path / "none"),
        )
        folder = str(tmp_path / "run" / "other")
        async with command(tmp_path / "t.out", "token", run.run_id, "--state", folder) as asked:
            assert await asked.ends() == 2 and "nothing runs on" in asked.output


async def _refused(folder: Path, status: int, message: str, *words: str) -> None:
    async with command(
        folder / "refused.out", "join", *words, "--state", str(folder / "refused")
    ) as made:
        assert await made.ends(60.0) == status, made.output
        assert " ".join(made.output.split()).count(message) == 1, made.output
        assert "Traceback" not in made.output and made.output.count("error:") == 1, made.output


@pytest.mark.slow
async def test_tokens_come_from_a_command_a_file_or_the_environment(
    tmp_path: Path, model: Path
) -> None:
    async with training(
        tmp_path / "run", waiting(model, budget={"steps": 500, "minutes": 5.0})
    ) as run:
        made = await run.ask("token", run.run_id, "--hours", "1")
        assert made["token"] != run.token and made["command"].endswith(
            f" join {run.address} --token-file {made['file']}"
        )
        assert (
            made["token"] not in made["command"]
            and Path(made["file"]).stat().st_mode & 0o777 == 0o600
        )
        file = tmp_path / "token"
        file.write_text(made["token"] + "\n")
        async with (
            command(
                tmp_path / "a.out",
                "join",
                run.address,
                "--token-file",
                str(file),
                "--state",
                str(tmp_path / "a"),
            ) as a,
            command(
                tmp_path / "b.out",
                "join",
                run.address,
                "--state",
                str(tmp_path / "b"),
                env={"BANYAN_TOKEN": made["token"]},
            ) as b,
        ):
            await a.says("joined run")
            await b.says("joined run")
            await run.command.says(r"members 3")
            a.stop(signal.SIGINT)
            assert await a.ends(20.0) == 0, a.output
            await run.command.says(
                r"members 2(?s:.*)members 3(?s:.*)members 2|members 3(?s:.*)members 2", 30.0
            )


@pytest.mark.slow
async def test_ctrl_c_while_the_node_starts_is_heard(tmp_path: Path, model: Path) -> None:
    async with training(
        tmp_path / "run", waiting(model, budget={"steps": 500, "minutes": 5.0})
    ) as run:
        for delay in (0.0, 0.1, 0.3, 0.8):
            async with joined(run, tmp_path / "node") as node:
                await asyncio.sleep(delay)  # different moments of its start
                node.stop(signal.SIGINT)
                assert await node.ends(30.0) == 0 and "Traceback" not in node.output, node.output


# -- weights --


@pytest.mark.slow
async def test_a_joined_node_samples_from_weights_that_came_over_the_wire(
    tmp_path: Path, eventually: Any
) -> None:
    folder = tmp_path / "run"
    async with (
        training(folder, torch_recipe(folder)) as run,
        joined(run, tmp_path / "node", "--threads", "1") as node,
    ):
        query = (
            "select distinct policy_step, policy_digest from segments where producer not in"
            " ('', 'rollout-0')"
        )
        await eventually(
            lambda: len([s for s, _ in run.rows(query) if s > 0]) >= 2,
            240.0,
            "trees of two later policies",
        )
        sampled = {digest for step, digest in run.rows(query) if step > 0}
        published = {
            bytes(digest)
            for (digest,) in run.rows("select digest from policies where not abandoned")
        }
        cancelled = await run.ask("runs", "cancel", run.run_id)
        assert cancelled["state"] == "CANCELLED"
        assert await node.ends(30.0) == 0, node.output  # by itself
        assert await run.command.ends(60.0) == 1, run.command.output
    fetched = [
        weightfile.open_verified(file) for file in (tmp_path / "node").rglob("policy-*.json")
    ]
    assert fetched and all(weightfile.digest_of(f.path) == f.digest for f in fetched)
    assert sampled <= published
    assert {f.digest for f in fetched} & {
        bytes(d) for (d,) in run.rows("select digest from policies")
    }


# -- another network --


@pytest.fixture
def network() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Make a network namespace with a link to this host.

    Yield this host's address on it, and the command prefix that runs inside.
    """
    with joined_network() as made:
        yield made.address, made.inside


@pytest.mark.slow
async def test_a_node_joins_from_another_network(
    tmp_path: Path, model: Path, network: Any, eventually: Any
) -> None:
    host, inside = network
    async with training(tmp_path / "run", waiting(model), listen=f"{host}:0") as run:
        assert run.address.startswith(f"{host}:")
        with (
            pytest.raises(OSError),
            socket.create_connection(("127.0.0.1", int(run.address.split(":")[1])), 1.0),
        ):
            pass
        async with joined(run, tmp_path / "node", prefix=inside) as node:
            await eventually(lambda: run.by_joined() >= 1, 60.0, "a tree of the joined node")
            assert await run.command.ends() == 0, run.command.output
            assert await node.ends(20.0) == 0, node.output
            clean(run)
