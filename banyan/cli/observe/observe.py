"""`banyan observe`: metrics and traces of a state folder, in the programs that are installed."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.text import Text

from banyan.cli.observe import programs
from banyan.cli.observe.last_step import LastStep, last_step
from banyan.cli.observe.programs import Viewer
from banyan.cli.observe.tool import Tool
from banyan.cli.options import DEFAULT_STATE, State
from banyan.cli.render.console import out
from banyan.errors import BanyanError, InvalidInput
from banyan.observability.prometheus import SCRAPE_S
from banyan.runtime.ports import free_port

_POLL_S = 0.5
_REWARD = "banyan:reward:mean30m"


def observe(
    state: State = DEFAULT_STATE,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of Prometheus; 0 picks a free one.")
    ] = 0,
    every: Annotated[
        float, typer.Option(min=0.5, max=3600.0, help="Seconds between two readings of metrics.")
    ] = SCRAPE_S,
) -> None:
    """Show metrics in Prometheus and traces in Phoenix, as far as they are installed, until Ctrl-C.

    Runs may begin and end meanwhile. Data of both programs stay in the folder observe of the state
    folder. Exit status 1 if neither is installed."""
    if not state.is_dir():
        raise InvalidInput(f"there is no folder {state}; run banyan train, or name it with --state")
    state = state.resolve()
    with contextlib.suppress(KeyboardInterrupt), _stoppable(), contextlib.ExitStack() as stack:
        metrics = _start_metrics(stack, state, port, every)
        viewer = _start_viewer(stack, state)
        if metrics is None and viewer is None:
            raise typer.Exit(1)
        _tell_last_step(state, viewer)
        _line("end", "Ctrl-C")
        _wait([tool for tool in (metrics, viewer and viewer.tool) if tool])


def _start_metrics(
    stack: contextlib.ExitStack, state: Path, port: int, every_s: float
) -> Tool | None:
    binary = programs.found("prometheus")
    if not binary:
        _line("metrics", programs.NO_PROMETHEUS)
        return None
    running = programs.prometheus(binary, state, port or free_port(), every_s)
    tool = stack.enter_context(running)
    _line("metrics", f"{tool.address}  Prometheus, which reads all processes every {every_s:g} s")
    pages = f"{tool.address}{programs.pages(tool)}"
    _line("alerts", f"{pages}/alerts")
    _line("targets", f"{pages}/targets  the processes, and why one cannot be read")
    _line("reward", f"{tool.address}/graph?g0.expr={quote(_REWARD)}&g0.tab=0&g0.range_input=1h")
    return tool


def _start_viewer(stack: contextlib.ExitStack, state: Path) -> Viewer | None:
    binary = programs.found("phoenix")
    if not binary:
        _line("traces", programs.NO_VIEWER)
        return None
    port = free_port()
    running = programs.phoenix(binary, state, port, free_port(taken=[port]))
    viewer = stack.enter_context(running)
    _line("traces", f"{viewer.tool.address}  Phoenix")
    _line("", f"send them there: OTEL_EXPORTER_OTLP_ENDPOINT={viewer.receiver} banyan train …")
    return viewer


def _tell_last_step(state: Path, viewer: Viewer | None) -> None:
    try:
        step = last_step(state)
    except BanyanError as error:
        _line("last step", f"unknown: {error}")
        return
    _line("last step", _where(step, viewer))


def _where(step: LastStep | None, viewer: Viewer | None) -> str:
    """Return where the trace of a step is."""
    if step is None:
        return "none yet"
    name = f"step {step.step} of {step.run_id}"
    if not step.trace_id:
        return f"{name} has no trace: OTEL_EXPORTER_OTLP_ENDPOINT was not set"
    if viewer is None:
        return f"{name} is trace {step.trace_id}, where OTEL_EXPORTER_OTLP_ENDPOINT led to"
    return f"{name}: {viewer.trace(step.trace_id)}, if it was sent there"


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Have SIGTERM and SIGINT end the block as Ctrl-C does, also where the shell ignores SIGINT for
    commands in the background.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _wait(tools: list[Tool]) -> None:
    """Wait until interrupted. Raise InvalidInput if a program ends before."""
    while True:
        for tool in tools:
            if ended := tool.ended():
                raise InvalidInput(ended)
        time.sleep(_POLL_S)


def _line(name: str, text: str) -> None:
    out.print(Text.assemble((f"{name:<10}", "bold"), text), soft_wrap=True)
