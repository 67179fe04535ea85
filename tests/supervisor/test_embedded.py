"""The whole embedded system: its ports answer only callers with the state folder's secret."""

import asyncio
from pathlib import Path

import pytest

from banyan.errors import InvalidInput, Refused
from services.chassis.process import nats_server
from services.chassis.rpc import rpc
from services.supervisor.embedded import embedded
from services.supervisor.state import StateFolder
from services.supervisor.supervisor import GivenUp, Supervisor
from services.verifier.jail import select

METHODS = {
    "treestore": "/banyan.v1.RunStoreService/ReadRuns",
    "gateway": "/banyan.v1.GatewayService/ListRuns",
    "verifier": "/banyan.v1.VerifierService/CloseEnvironment",
}


async def _answers(supervisor: Supervisor, secret: str) -> list[str]:
    """Return the services whose ports answer a call with this secret."""
    state = supervisor.fleet.state
    answering = []
    for service in METHODS:
        async with rpc.channel(state.address(service), secret=secret) as channel:
            try:
                await rpc.call(channel.unary_unary(METHODS[service]), b"", 10.0)
            except Refused as error:
                assert error.reason == "UNAUTHENTICATED"
                assert str(state.path / "secret") in str(error)
                continue
            except Exception:  # any error but a refusal is an answer
                assert service == "verifier"  # no environment has the empty id
            answering.append(service)
    return answering


async def test_ports_answer_who_knows_the_secret_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    async with embedded(tmp_path / "s") as supervisor:
        assert supervisor.fleet.inherited["OMP_PROC_BIND"] == "false", "a user's settings hold"
        state = supervisor.fleet.state
        assert await _answers(supervisor, state.secret) == ["treestore", "gateway", "verifier"]
        for wrong in ("", "0" * 64):
            assert await _answers(supervisor, wrong) == []
        for child in supervisor.children.values():
            for file in ("environ", "cmdline"):
                assert state.secret.encode() not in Path(f"/proc/{child.pid}/{file}").read_bytes()
        logs = [log.read_text() for log in (state.path / "logs").iterdir()]
        assert state.secret not in "".join(logs)


async def test_a_state_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o755)
    (tmp_path / "s").chmod(0o755)
    folder = StateFolder.open(tmp_path / "s")
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in [folder.path, *folder.path.iterdir()]
    }
    folders, files = ("s", "logs", "metrics", "runs"), ("secret", "metrics-key")
    assert modes == dict.fromkeys(folders, 0o700) | dict.fromkeys(files, 0o600)
    (tmp_path / "s").chmod(0o755)
    assert StateFolder.open(tmp_path / "s").secret == folder.secret
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_holds_other_things_is_no_state_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / "lost+found").mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidInput, match=r"holds other things, such as thesis\.tex"):
        StateFolder.open(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


async def test_a_folder_in_which_a_jail_was_proven_is_one(tmp_path: Path) -> None:
    """As by `banyan doctor`, which a newcomer runs before any training."""
    folder = tmp_path / "s"
    jail = await select.choose(folder, backends=["process"])
    await jail.close()
    assert [path.name for path in folder.iterdir()] == ["jail_proofs.json"]
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
    assert StateFolder.open(folder).path == folder


@pytest.mark.parametrize("target", ["missing", "loop", "itself"])
def test_a_link_that_leads_nowhere_is_no_state_folder(tmp_path: Path, target: str) -> None:
    (tmp_path / "loop").symlink_to("itself")
    state = tmp_path / "itself"
    state.symlink_to(target)
    with pytest.raises(InvalidInput, match=f"itself as state folder: it is a link to {target}, "):
        StateFolder.open(state)


async def test_a_broker_that_cannot_hold_the_streams_ends_the_start_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_server, "MAX_FILE_STORE", "1GB")
    # Two starts of a process, not the 90 s of waiting for one to serve.
    async with asyncio.timeout(60):
        with pytest.raises(
            GivenUp, match=r"stream LINEAGE cannot be made.* max_file_store .* MiB or more"
        ):
            async with embedded(tmp_path / "s"):
                pass
