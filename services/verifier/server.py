"""The gRPC service of the verifier: scoring on request, and the list of scorers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc.aio

from banyan import registry
from banyan.errors import BanyanError, NotReady
from banyan.plugins import Unscorable
from banyan.v1 import verifier_service_pb2 as pb
from banyan.v1 import verifier_service_pb2_grpc
from banyan.wire import receipts
from services.verifier.environments.actions import Actions
from services.verifier.sandbox.pool import Verdict
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring, to_wire

_LONGEST_S = 60.0  # of a wait for an action
NAME = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name


class VerifierServer(verifier_service_pb2_grpc.VerifierServiceServicer):
    """Serves VerifierService."""

    def __init__(self, scoring: Scoring, concurrency: int, actions: Actions) -> None:
        self._scoring, self._actions = scoring, actions
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
        receipt, text = await self._actions.act(
            request.tree_id,
            request.epoch,
            request.action,
            call=request.call,
            deadline_s=min(request.deadline_ms / 1000, _LONGEST_S),
        )
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
        """Raise NotReady: not in this version."""
        _no_environments()

    async def Step(self, request: pb.StepRequest, context: Any) -> pb.StepResponse:
        """Raise NotReady: not in this version."""
        _no_environments()

    async def Fork(self, request: pb.ForkRequest, context: Any) -> pb.ForkResponse:
        """Raise NotReady: not in this version."""
        _no_environments()

    async def CloseEnvironment(
        self, request: pb.CloseEnvironmentRequest, context: Any
    ) -> pb.CloseEnvironmentResponse:
        """Raise NotReady: not in this version."""
        _no_environments()


def _no_environments() -> NoReturn:
    raise NotReady(
        "the verifier has no environments in this version; score whole completions with Score"
    )


def adder(server: VerifierServer) -> Any:
    """Return the function that adds the service to a gRPC server."""

    def add(to: grpc.aio.Server) -> None:
        verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(server, to)

    return add
