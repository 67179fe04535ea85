"""The gRPC service of the verifier: scores and environments on request, and actions of trees."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from banyan import registry
from banyan.digest import blake
from banyan.environments.endings import Ending
from banyan.errors import BanyanError, InvalidInput
from banyan.plugins import Unscorable
from banyan.v1 import tree_pb2, verifier_service_pb2_grpc
from banyan.v1 import verifier_service_pb2 as pb
from banyan.wire import endings, receipts
from services.chassis.rpc.rpc import NODE_KEY, RUN_KEY
from services.verifier.environments.actions import Actions
from services.verifier.environments.asked import Caller
from services.verifier.environments.opened.environments import OpenedEnvironments
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring, to_wire

_LONGEST_S = 60.0  # of a wait for an action
_MOST_CALL = 1 << 20  # characters of an action; they are held while it is answered
NAME = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name


class VerifierServer(verifier_service_pb2_grpc.VerifierServiceServicer):
    """Serves VerifierService."""

    def __init__(
        self, scoring: Scoring, concurrency: int, actions: Actions, opened: OpenedEnvironments
    ) -> None:
        self._scoring, self._actions, self._opened = scoring, actions, opened
        self._concurrency = concurrency

    async def Score(
        self, requests: AsyncIterator[pb.ScoreRequest], context: Any
    ) -> AsyncIterator[pb.ScoreResponse]:
        """Answer in the order in which scores are done.

        No more requests are read than may be scored at once.
        """
        answers: asyncio.Queue[pb.ScoreResponse | BaseException | None] = asyncio.Queue(
            self._concurrency
        )
        reading = asyncio.create_task(self._read(requests, answers))
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def Act(self, request: pb.ActRequest, context: Any) -> pb.ActResponse:
        """Answer an action of a tree."""
        if len(request.call) > _MOST_CALL:
            raise InvalidInput(
                f"an action has {len(request.call)} characters; at most {_MOST_CALL} are taken"
            )
        answer = await self._actions.act(
            request.tree_id,
            request.epoch,
            request.action,
            call=request.call,
            deadline_s=min(request.deadline_ms / 1000, _LONGEST_S),
            caller=_caller(context),
        )
        if isinstance(answer, Ending):
            return pb.ActResponse(ending=endings.to_wire(answer))
        receipt, text = answer
        return pb.ActResponse(receipt=receipts.to_wire(receipt), text=text)

    async def _read(
        self,
        requests: AsyncIterator[pb.ScoreRequest],
        answers: "asyncio.Queue[pb.ScoreResponse | BaseException | None]",
    ) -> None:
        slots = asyncio.Semaphore(self._concurrency)
        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    await slots.acquire()
                    group.create_task(self._answer(request, slots, answers))
            await answers.put(None)
        except BaseExceptionGroup as error:
            await answers.put(error.exceptions[0])
        except BanyanError as error:
            await answers.put(error)

    async def _answer(
        self, request: pb.ScoreRequest, slots: asyncio.Semaphore, answers: "asyncio.Queue[Any]"
    ) -> None:
        try:
            verdict = await self._verdict(request)
            response = pb.ScoreResponse(
                request_id=request.request_id,
                score=to_wire(verdict.outcome),
                scorer_version=verdict.version,
            )
            await answers.put(response)
        finally:
            slots.release()

    async def _verdict(self, request: pb.ScoreRequest) -> Verdict:
        try:
            row = json.loads(request.row_json or "{}")
        except ValueError as error:
            return Verdict("", Unscorable(f"EXCEPTION: row_json is not JSON: {error}"))
        if not isinstance(row, dict):
            kind = type(row).__name__
            return Verdict("", Unscorable(f"EXCEPTION: row_json is {kind}, not an object"))
        return await self._scoring.score(ScorerSpec(request.scorer, {}), request.completion, row)

    async def ListScorers(
        self, request: pb.ListScorersRequest, context: Any
    ) -> pb.ListScorersResponse:
        """List the registered scorers; any module:function can be named beside them."""
        return pb.ListScorersResponse(scorers=registry.names("filter"))

    async def OpenEnvironment(
        self, request: pb.OpenEnvironmentRequest, context: Any
    ) -> pb.OpenEnvironmentResponse:
        """Open an environment; it is kept by this process."""
        key, beginning = await self._opened.open(request)
        opened = beginning.opened
        return pb.OpenEnvironmentResponse(
            environment_id=key,
            about=beginning.about,
            end=opened.environment.end,
            state=blake(opened.state),
        )

    async def Step(self, request: pb.StepRequest, context: Any) -> pb.StepResponse:
        """Act in an open environment."""
        answer, text = await self._opened.step(request.environment_id, request.action)
        return pb.StepResponse(
            observation=text,
            done=answer.done,
            reward=answer.reward,
            outcome=tree_pb2.ToolOutcome.ValueType(answer.outcome),
            effect=tree_pb2.ToolEffect.ValueType(answer.effect),
            anchor=answer.anchor,
            state=blake(answer.state),
        )

    async def Fork(self, request: pb.ForkRequest, context: Any) -> pb.ForkResponse:
        """Copy an open environment."""
        return pb.ForkResponse(environment_id=await self._opened.fork(request.environment_id))

    async def CloseEnvironment(
        self, request: pb.CloseEnvironmentRequest, context: Any
    ) -> pb.CloseEnvironmentResponse:
        """Forget an open environment."""
        self._opened.close(request.environment_id)
        return pb.CloseEnvironmentResponse()


def _caller(context: Any) -> Caller:
    """Return the joined node that the gateway speaks for."""
    said = {key: str(value) for key, value in context.invocation_metadata() or ()}
    return Caller(said.get(RUN_KEY, ""), said.get(NODE_KEY, ""))


def adder(server: VerifierServer) -> Any:
    """Return the function that adds the service to a gRPC server."""

    def add(to: grpc.aio.Server) -> None:
        verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(server, to)

    return add
