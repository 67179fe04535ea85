"""The configuration of the real server, in state folders whose names mean something to its
parser."""

from pathlib import Path

import pytest

from banyan.runtime import ports
from services.chassis.process import nats_server
from services.gateway.join import nats_accounts, tls

NAMES = ['a "b" c', "a\\b\\n\\x41", "a\nb\tc", "it's $HOME", "# // {x} [y]; %41?"]


@pytest.mark.parametrize("name", NAMES)
def test_the_server_starts_with_its_files_in_any_folder(tmp_path: Path, name: str) -> None:
    state = tmp_path / name
    address = f"127.0.0.1:{ports.free_port()}"
    store = state / "nats" / "jetstream"
    config = nats_accounts.write_nats_config(state, address, store, tls.identity(state))
    log = tmp_path / "log"
    process = nats_server.start(config, log)
    try:
        nats_server.await_listening(address, process, log, tls=True)
        assert store.is_dir(), log.read_text()
    finally:
        process.kill()
        process.wait(10)
