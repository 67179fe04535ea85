"""`banyan join` and `banyan token`: take part in a run with a further rollout node."""

import asyncio
import getpass
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from banyan.cli.invocation import me
from banyan.cli.join import instructions
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, err
from banyan.cli.store import commanding
from banyan.errors import InvalidInput
from banyan.runtime import torch_environment
from banyan.runtime.launch import FOLDERS, OURS
from banyan.wire import plain_data


def token(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run that the token opens.")],
    hours: Annotated[
        float, typer.Option(min=1 / 3600, max=24 * 365, help="Hours that it is valid.")
    ] = 24.0,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Make a token with which nodes may join a run."""
    with commanding(state) as client:
        created = client.create_token(client.run(run_id).run_id, hours)
        file = instructions.keep(state, client.run(run_id).run_id, created.token).resolve()
    command = f"{me()} join {created.address} --token-file {shlex.quote(str(file))}"
    until = plain_data.when(int(1000 * (time.time() + 3600 * hours)))
    emit(
        {
            "address": created.address,
            "token": created.token,
            "until": until,
            "file": str(file),
            "command": command,
        },
        as_json,
    )


def join(
    address: Annotated[
        str, typer.Argument(help="host:port of the gateway, as banyan train --listen prints it.")
    ],
    secret: Annotated[
        str,
        typer.Option(
            "--token", envvar="BANYAN_TOKEN", help="Token; by default that of BANYAN_TOKEN."
        ),
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="File that holds the token.")] = None,
    threads: Annotated[
        int, typer.Option(min=0, max=4096, help="Torch threads; 0 for all cores.")
    ] = 0,
    state: State = Path(".banyan-node"),
) -> None:
    """Join a run as a rollout node until the run is over or Ctrl-C."""
    if token_file is not None:
        try:
            secret = token_file.read_text().strip()
        except OSError as error:
            raise InvalidInput(f"cannot read token file {token_file}: {error.strerror}") from None
    if not secret and sys.stdin is not None and sys.stdin.isatty():
        secret = getpass.getpass("token: ").strip()
    if not secret:
        raise InvalidInput("give the token with --token, --token-file or BANYAN_TOKEN")
    from services.gateway.join.client import admit

    environment = asyncio.run(admit(address, secret, state))
    cores = threads or len(os.sched_getaffinity(0))
    environment |= {
        "BANYAN_THREADS": str(cores),
        "OMP_NUM_THREADS": str(cores),
        **torch_environment.SETTINGS,
    }
    # The node finds its plugins in the working folder.
    environment[FOLDERS] = os.pathsep.join(filter(None, (os.environ.get(FOLDERS), os.getcwd())))
    # BANYAN_PARENT ties children of a launcher to it, and this process is none of them.
    inherited = {k: v for k, v in os.environ.items() if k not in ("BANYAN_PARENT", "BANYAN_TOKEN")}
    # Block signals while the node starts: during its imports one would end it with a traceback, or
    # be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    err.print(
        f"joined run {environment['BANYAN_RUN']} as {environment['BANYAN_NODE_ID']}; Ctrl-C leaves "
        "it"
    )
    os.execve(sys.executable, [*OURS, "services.rollout"], inherited | environment)
