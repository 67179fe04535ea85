"""A treestore that is started for one reader, on a state folder where nothing runs."""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import grpc

from banyan.client.connecting import Endpoints
from banyan.errors import DeadlineMissed, InvalidInput
from banyan.runtime import secret
from banyan.runtime.launch import OURS
from banyan.runtime.ports import free_port
from banyan.runtime.state_folder import HOST

START_S = 30.0
STOP_S = 10.0
READ_ONLY, STORING = "BANYAN_READ_ONLY", "BANYAN_OFFLINE"
"""Modes of a treestore without a broker: queries alone, or scores that come later, too."""


class OfflineStore:
    """A treestore without a broker; it ends with `close`, or with this process.

    The kernel ends it when the thread that started it ends, so it has a thread of its own.

    state: state folder; it need not be writable if the mode is READ_ONLY
    mode: READ_ONLY or STORING
    address, secret_file: of its port; empty for a free port and a secret of its own

    Raises InvalidInput with the store's last words if it does not start.
    """

    def __init__(
        self, state: Path, mode: str = READ_ONLY, *, address: str = "", secret_file: str = ""
    ) -> None:
        self._own = tempfile.TemporaryDirectory() if not secret_file else None
        file = Path(secret_file or Path(self._own.name if self._own else "") / secret.FILE)
        self.endpoints = Endpoints(
            store=address or f"{HOST}:{free_port()}", secret=secret.make(file)
        )
        self._env = {
            **os.environ,
            "BANYAN_STATE": str(state.resolve()),
            mode: "1",
            "BANYAN_LISTEN": self.endpoints.store,
            "BANYAN_SECRET_FILE": str(file),
            "BANYAN_LOG_LEVEL": "warning",
            "BANYAN_PARENT": str(os.getpid()),
        }
        self._started, self._closing = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._keep, name="offline-store", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self.close()
            raise self._failure

    def close(self) -> None:
        """Stop the store. May be called repeatedly."""
        self._closing.set()
        self._thread.join()
        if self._own is not None:
            self._own.cleanup()

    def _keep(self) -> None:
        """Start the store, and stop it once the reader is done."""
        with tempfile.TemporaryFile() as log:
            try:
                process = subprocess.Popen(
                    [*OURS, "services.treestore"],
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C is for the reader, which closes the store when it is done.
                    start_new_session=True,
                )
            except OSError as error:
                self._failure = InvalidInput(f"cannot start the store: {error.strerror}")
                self._started.set()
                return
            try:
                _await(self.endpoints.store, process, log)
            except Exception as error:  # raised again in the thread that waits for it
                self._failure = error
            self._started.set()
            if self._failure is None:
                self._closing.wait()
            _stop(process)


def _await(address: str, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    end = time.monotonic() + START_S
    with grpc.insecure_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        while time.monotonic() < end:
            if process.poll() is not None:
                log.seek(0)
                raise InvalidInput(
                    log.read().decode(errors="replace").strip()
                    or f"the store ended with {process.returncode}"
                )
            with contextlib.suppress(grpc.FutureTimeoutError):
                ready.result(timeout=0.1)
                return
    raise DeadlineMissed(f"the store did not start within {START_S:.0f} s")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
