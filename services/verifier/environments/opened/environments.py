"""Opened environments: begun, stepped, forked and closed by id (ADR 072)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from banyan.environments.cut import cut
from banyan.environments.observed import MOST_ANSWER
from banyan.errors import DeadlineMissed, InvalidInput, Refused, TemporaryError
from banyan.plugins.environment import Answer
from banyan.reasons import Reason
from banyan.v1 import verifier_service_pb2 as pb
from services.verifier.environments.opened.opening import Beginning, Opening
from services.verifier.environments.opened.table import OpenEnvironment, Table, shown
from services.verifier.environments.stepping import Stepper
from services.verifier.environments.unanswerable import Unanswerable

_MOST_ACTION = 64 << 10  # characters
_LINE_S = 60.0  # that a call waits for those before it
_MOST_CALLS = 1024  # under way; each holds its request


class OpenedEnvironments:
    """The environments that clients hold open.

    opening: begins them.
    stepper: answers actions, as it does those of trees.
    table: keeps them.
    """

    def __init__(self, opening: Opening, stepper: Stepper, table: Table | None = None) -> None:
        self._opening, self._stepper = opening, stepper
        self._table = table or Table()
        self._calls = 0

    async def open(self, request: pb.OpenEnvironmentRequest) -> tuple[str, Beginning]:
        """Return the id of a new environment, and its beginning. Raises as `Opening.begin`.

        Raises TemporaryError if too many are open.
        """
        with self._place():
            self._table.check_room()
            beginning = await self._opening.begin(request)
            return self._table.add(beginning.opened), beginning

    async def step(self, key: str, action: str) -> tuple[Answer, str]:
        """Return the answer to an action, and its text as a path would have it.

        Raises NotFound if it is not open, Refused behind its end, TemporaryError where the step was
        lost by no fault of the action. What raises leaves it as it was.
        """
        if len(action) > _MOST_ACTION:
            raise InvalidInput(
                f"an action has {len(action)} characters; at most {_MOST_ACTION} are taken"
            )
        async with self._turn(key) as at:
            _refuse_behind_the_end(key, at)
            try:
                step = self._stepper.step(at.environment, at.state, action, b"")
                answer = await self._while_open(key, at, step)
            except Unanswerable as end:
                raise Refused(f"environment {shown(key)}: {end}", end.reason) from end
            self._table.put(key, answer.state)
            at.turns, at.done = at.turns - 1, answer.done
        return answer, cut(answer.text[:MOST_ANSWER], at.answer_chars)

    async def fork(self, key: str) -> str:
        """Return the id of a copy. Raises NotFound, or TemporaryError if too many are open."""
        async with self._turn(key) as at:
            return self._table.add(at.copy())

    def close(self, key: str) -> None:
        """Forget an environment, and end the step that is under way. Raises NotFound."""
        self._table.close(key)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Count a call. Raises TemporaryError if too many are under way."""
        if self._calls >= _MOST_CALLS:
            raise TemporaryError(
                f"{_MOST_CALLS} calls about opened environments are under way, as many as this"
                " verifier takes: try again later",
                reason=Reason.TOO_MANY,
            )
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    async def _while_open(
        self, key: str, at: OpenEnvironment, step: Coroutine[Any, Any, Answer]
    ) -> Answer:
        """Return what a step returns. Raises NotFound at once if its environment is closed."""
        working, over = asyncio.create_task(step), asyncio.create_task(at.over.wait())
        try:
            await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
            self._table.get(key)
            return await working
        finally:
            for task in (working, over):
                task.cancel()
            await asyncio.gather(working, over, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[OpenEnvironment]:
        """Wait for the calls about an environment that came before."""
        with self._place():
            at = self._table.get(key)
            try:
                async with asyncio.timeout(_LINE_S):
                    await at.line.acquire()
            except TimeoutError:
                raise DeadlineMissed(
                    f"environment {shown(key)} was at work for earlier calls for {_LINE_S:g} s;"
                    " try again"
                ) from None
            try:
                self._table.get(key)  # it may have ended meanwhile
                yield at
            finally:
                at.line.release()


def _refuse_behind_the_end(key: str, at: OpenEnvironment) -> None:
    """Raise Refused if an environment takes no more actions."""
    if at.done:
        raise Refused(
            f"the episode of environment {shown(key)} is over; open another, or go on in a fork"
            " that was made before its end"
        )
    if at.turns <= 0:
        raise Refused(
            f"environment {shown(key)} has had all its actions (of a run: environment.turns); open"
            " another"
        )
