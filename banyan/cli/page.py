"""`banyan page`: the page of a running system, or of what a state folder holds."""

import asyncio
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from banyan.cli.options import DEFAULT_STATE, State
from banyan.cli.render.console import err, out
from banyan.cli.store import checked, read_only, reading
from banyan.client import Client
from banyan.runtime.state_folder import HOST

if TYPE_CHECKING:
    from services.supervisor.state import StateFolder

_OPENING_S = 3.0
_ANSWER_S = 3.0


def page(
    run_id: Annotated[
        str,
        typer.Argument(metavar="[RUN]", help="Run to begin with: its id, or a unique beginning."),
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port where nothing runs; 0 for the folder's own, or a free one."
        ),
    ] = 0,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only print the address; open no browser.")
    ] = False,
    state: State = DEFAULT_STATE,
) -> None:
    """Open the page with runs, curves and trees: of the system that runs on the state folder, or
    of the stored runs alone, until Ctrl-C."""
    folder = checked(state)
    if folder.locked():
        with reading(state) as client:
            path = _path(client, run_id)
        address = f"http://{folder.address('page')}"
        err.print(f"the page of the system that runs here; {_reading(address)}", soft_wrap=True)
        _show(f"{address}{path}", no_open)
        return
    with read_only(state) as (address, secret):
        with Client(address, secret=secret) as client:
            path = _path(client, run_id)
        asyncio.run(_serve(folder, (address, secret), path, port=port, no_open=no_open))


def _path(client: Client, run_id: str) -> str:
    """Return the path of the page that shows a run, or all. Raises NotFound."""
    return f"/runs/{quote(client.run(run_id).run_id, safe='')}" if run_id else "/"


def _reading(address: str) -> str:
    """Return what reading a running page on this machine needs, as the page itself says."""
    try:
        with urllib.request.urlopen(f"{address}/api/runs?limit=1", timeout=_ANSWER_S):
            return "reading it on this machine needs no token"
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.UNAUTHORIZED:
            return "reading it needs the token, which is in the file secret of the state folder"
        return f"it answers with status {error.code}: see the gateway's log"
    except OSError as error:
        return f"it does not answer yet ({error}): see `banyan ps`"


async def _serve(
    folder: "StateFolder", store: tuple[str, str], path: str, *, port: int, no_open: bool
) -> None:
    """Serve the page of a store that only reads until Ctrl-C.

    store: its address and secret
    """
    from services.chassis.process import settings
    from services.chassis.rpc import rpc
    from services.gateway.page.app import Page
    from services.gateway.page.host import serving
    from services.gateway.page.http.access import Access
    from services.gateway.page.reads import Reads
    from services.gateway.settings import Settings

    free = not settings.read(Settings).http_token
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    address, secret = store
    channel = rpc.channel(address, secret=secret)
    try:
        made = Page(Reads(channel), Access(secret=folder.secret, loopback_free=free), folder.path)
        listen = f"{HOST}:{port or _own_port(folder)}"
        async with serving(made.app, made.hub, listen) as served:
            _show(f"http://{served}{path}", no_open)
            err.print("nothing runs here: the page shows what is stored; Ctrl-C ends it")
            await ended.wait()
    finally:
        await channel.close(None)


def _own_port(folder: "StateFolder") -> int:
    """Return the port that the folder's page has while a system runs, or 0 for any: so an address
    that a person kept holds."""
    from services.supervisor.state import can_listen

    port = folder.read_ports().get("page", 0)
    return port if port and can_listen(HOST, port) else 0


def _show(address: str, no_open: bool) -> None:
    out.print(f"page {address}", markup=False, soft_wrap=True)
    sys.stdout.flush()
    if not no_open and _has_browser():
        import webbrowser

        # Some browsers keep the caller until they end.
        opening = threading.Thread(target=webbrowser.open, args=(address,), daemon=True)
        opening.start()
        opening.join(_OPENING_S)


def _has_browser() -> bool:
    """Return whether there is a browser with windows: one in text would take the terminal."""
    windows = sys.platform in ("darwin", "win32")
    return windows or any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
