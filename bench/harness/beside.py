"""Alternation of one process and the services, so that both meet the same machine.

Each stands still while the other takes a step. A machine whose neighbours come and go differs by a
quarter between runs that are a minute apart, but by little between two steps that are three seconds
apart.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

from banyan.recipe import Recipe
from banyan.runtime import torch_environment
from bench.rivals.oneprocess import OneProcess, Seconds

_STEP_S = 300.0


@dataclass
class Alone:
    """Steps in one process: their times, the policies, and the time of a node to load each."""

    seconds: Seconds
    digests: list[bytes] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


class Beside:
    """Steps of a run as functions in a new process, one at each request."""

    def __init__(self, recipe: Recipe, run_id: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._mine, its = context.Pipe()
        with _bound():  # as the services do; what is spawned reads it
            self._process = context.Process(
                target=_serve, args=(its, recipe.model_dump_json(), run_id), daemon=True
            )
            self._process.start()
        its.close()

    def __enter__(self) -> "Beside":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mine.close()
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()

    async def ready(self) -> None:
        """Wait until its models are loaded."""
        await asyncio.to_thread(self._answer)

    async def step(self, number: int) -> Alone:
        """Take a step; return all steps until now."""
        self._mine.send(number)
        return await asyncio.to_thread(self._answer)

    def _answer(self) -> Alone:
        if not self._mine.poll(_STEP_S):
            raise TimeoutError(
                f"the process beside the services did not answer within {_STEP_S:.0f} s"
            )
        answer: Alone = self._mine.recv()
        return answer


@contextmanager
def _bound() -> Iterator[None]:
    before = os.environ.get("OMP_PROC_BIND")
    torch_environment.bind(os.environ, len(torch_environment.CORES))
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_PROC_BIND"]


def _serve(asked: Connection, recipe_json: str, run_id: str) -> None:
    process = OneProcess(Recipe.model_validate_json(recipe_json), run_id)
    alone = Alone(process.seconds)
    asked.send(alone)
    while True:
        try:
            number = asked.recv()
        except EOFError:
            return
        process.step(number)
        digest, seconds = process.hand_over()
        alone.digests.append(digest)
        alone.loads.append(seconds)
        asked.send(alone)


@dataclass
class Stopped:
    """Seconds for which processes were stopped."""

    seconds: float = 0.0


@contextmanager
def stopped(pids: list[int]) -> Iterator[Stopped]:
    """Stop processes within the context."""
    spent, begun = Stopped(), time.time()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield spent
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        spent.seconds = time.time() - begun
