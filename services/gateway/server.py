"""GatewayService, the API of the control plane for users and clients.

It validates, stores and wakes drivers; decisions are made in `runs`.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput, NotReady, Refused
from banyan.reasons import Reason
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1.gateway_service_pb2_grpc import GatewayServiceServicer
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.domain import state_machine
from services.gateway.domain.ports import Store
from services.gateway.domain.state_machine import State
from services.gateway.join import tokens
from services.gateway.join.admission import Admission, TokenVerifier, check_joinable
from services.gateway.runs import model_facts
from services.gateway.runs.applied_steps import Applied, read_applied
from services.gateway.runs.create import new_run, read_recipe, with_commit, with_model
from services.gateway.runs.drivers import Drivers
from services.gateway.runs.facts import facts_of
from services.gateway.runs.revive import uncured
from services.gateway.runs.watch import watch
from services.gateway.tasks import dataset

_TRIES = 5  # a run may move between our read and our move
_TOKEN_S = 86_400
_LOOPBACK = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")


class Gateway(GatewayServiceServicer):
    """GatewayService on the plain port."""

    def __init__(
        self,
        store: Store,
        drivers: Drivers,
        tokens: TokenVerifier,
        admission: Admission,
        *,
        join: "JoinPort | None",
        state: Path,
    ) -> None:
        self._store, self._drivers = store, drivers
        self._tokens, self._admission = tokens, admission
        self._join, self._state = join, state

    async def CreateRun(self, request: pb.CreateRunRequest, context: Any) -> pb.CreateRunResponse:
        recipe = read_recipe(request.recipe_json)
        recipe = await asyncio.to_thread(with_model, recipe)
        recipe = await asyncio.to_thread(with_commit, recipe)
        examples = await dataset.load(recipe, Path.cwd())
        facts = await asyncio.to_thread(model_facts.read, recipe)
        new = new_run(recipe, examples, request.folder, self._state, facts)
        self._drivers.check(new.run.run_id, recipe, examples)
        stored = await self._put(new.run, request.request_id or uuid.uuid4().hex, facts.tokenizer)
        if stored.run_id == new.run.run_id and state_machine.working(stored.state):
            self._drivers.start(stored.run_id, recipe, examples)
        return pb.CreateRunResponse(
            run=stored, train_rows=len(examples.train), held_out_rows=len(examples.held_out)
        )

    async def _put(self, run: runs.Run, request_id: str, tokenizer: bytes) -> runs.Run:
        try:
            return await self._store.put_run(run, request_id, tokenizer)
        except Refused as error:
            if error.reason != Reason.RUN_EXISTS:
                raise
            state = state_machine.name((await self._store.read_run(run.run_id)).run.state)
            raise Refused(
                f"run {run.run_id} is {state} here already: a deterministic recipe with the same"
                " seed is the same run; go on with it by --resume, change the seed, or name"
                " another folder with --state",
                error.reason,
            ) from None

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        answer = await self._store.read_run(request.run_id, with_progress=True)
        return pb.GetRunResponse(run=answer.run, progress=answer.progress)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        return pb.ListRunsResponse(runs=await self._store.read_runs(request.live_only))

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Any
    ) -> AsyncIterator[pb.WatchRunResponse]:
        run_id = (await self._store.read_run(request.run_id)).run.run_id
        with self._drivers.watching(run_id) as wake:
            async for news in watch(self._store, run_id, wake):
                yield news

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        to = S.RUN_STATE_PAUSED if request.pause else S.RUN_STATE_CANCELLED
        return pb.CancelRunResponse(run=await self._move(request.run_id, to, request.cause))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Any) -> pb.ResumeRunResponse:
        run = (await self._store.read_run(request.run_id)).run
        if state_machine.working(run.state):
            # A repeated request, or its supervisor was killed: the run goes on by itself.
            return pb.ResumeRunResponse(run=run)
        if run.state == S.RUN_STATE_FAILED and request.failed:
            run = await self._revive(run)
        return pb.ResumeRunResponse(run=await self._move(run.run_id, run.resume_state, ""))

    async def _revive(self, run: runs.Run) -> runs.Run:
        """Pause a FAILED run. Raise Refused with the cause if it would fail again at once."""
        answer = await self._store.read_run(run.run_id, with_progress=True)
        progress = answer.progress
        known = await read_applied(self._store, run.run_id, Applied())
        facts = facts_of(
            answer, progress, len(run.held_out), fruitless=known.missing(int(progress.batches))
        )
        resumed = replace(facts, state=run.resume_state or S.RUN_STATE_STARTING)
        why = uncured(read_recipe(run.recipe_json), resumed)
        if why:
            message = (
                f"run {run.run_id} FAILED and would fail again for the same reason: {why};"
                " start a new run"
            )
            raise Refused(message, reason=Reason.NOT_CURED)
        return await self._store.move_run(
            run.run_id, run.state, S.RUN_STATE_PAUSED, f"it had FAILED: {run.cause}"
        )

    async def _move(self, run_id: str, to: State, cause: str) -> runs.Run:
        for _ in range(_TRIES):
            run = (await self._store.read_run(run_id)).run
            if run.state == to:
                return run
            if not state_machine.allowed(run.state, to):
                wanted = state_machine.name(to) if to else "resumed"
                raise Refused(
                    f"run {run.run_id} is {state_machine.name(run.state)}"
                    f" and cannot become {wanted}",
                    reason=Reason.WRONG_STATE,
                )
            try:
                moved = await self._store.move_run(run.run_id, run.state, to, cause)
                self._drivers.wake(run.run_id)
                return moved
            except Refused as error:
                if error.reason == Reason.STALE_EPOCH:
                    raise
        raise Refused(f"run {run_id} keeps moving; ask again", reason=Reason.WRONG_STATE)

    async def CreateToken(
        self, request: pb.CreateTokenRequest, context: Any
    ) -> pb.CreateTokenResponse:
        if not str(context.peer()).startswith(_LOOPBACK):
            raise Refused(
                f"tokens are made on the gateway's own host only, not for {context.peer()}",
                reason=Reason.NOT_LOCAL,
            )
        if self._join is None:
            raise InvalidInput(
                "this gateway has no join port; start it with `banyan train … --listen host:port`"
            )
        run = (await self._store.read_run(request.run_id)).run
        check_joinable(run)
        token = tokens.make(self._join.fingerprint)
        await self._store.put_token(
            tokens.secret_hash(token.secret), run.run_id, request.valid_s or _TOKEN_S
        )
        return pb.CreateTokenResponse(token=str(token), address=self._join.address)

    async def JoinSwarm(self, request: pb.JoinSwarmRequest, context: Any) -> pb.JoinSwarmResponse:
        run_id = await self._tokens.run_of(context.invocation_metadata() or ())
        return await self._admission.admit(run_id, request)

    async def ListMembers(
        self, request: pb.ListMembersRequest, context: Any
    ) -> pb.ListMembersResponse:
        run = (await self._store.read_run(request.run_id)).run
        return pb.ListMembersResponse(members=await self._store.read_members(run.run_id))

    async def Expand(
        self, request: pb.ExpandRequest, context: Any
    ) -> AsyncIterator[pb.ExpandResponse]:
        raise NotReady(
            "the gateway cannot search yet: there are no search policies;"
            " `banyan simulate` grows one tree"
        )
        yield


class JoinPort:
    """The port where nodes join: the address in tokens, and the fingerprint of its certificate."""

    def __init__(self, address: str, fingerprint: str) -> None:
        self.address, self.fingerprint = address, fingerprint
