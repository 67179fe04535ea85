"""Admitting nodes: who holds a valid token gets credentials scoped to the token's run, and becomes a member."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from services.chassis import subjects
from services.gateway.join import credentials, tokens
from services.gateway.join.scope import Scope
from services.gateway.ports import Store
from services.gateway.runs import machine

_REMEMBER_S = 10.0  # a withdrawn or expired token works for this much longer at most
_REMEMBERED = 1024
NO_TOKEN = "UNAUTHENTICATED"


class Door:
    """Checks tokens against the store, remembering good ones for a moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, tuple[str, float]] = {}

    async def run_of(self, metadata: Iterable[Any]) -> str:
        """The run that the caller's token opens. Raises Refused, UNAUTHENTICATED."""
        secret = _bearer(metadata)
        digest = tokens.secret_hash(secret)
        run_id, until = self._known.get(digest, ("", 0.0))
        if until < time.monotonic():
            run_id = await self._look_up(digest)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = (run_id, time.monotonic() + _REMEMBER_S)
        return run_id

    async def _look_up(self, digest: bytes) -> str:
        try:
            return await self._store.read_token(digest)
        except NotFound:
            raise Refused(
                "this join token is wrong or has expired; ask for a new one where the run was started", reason=NO_TOKEN
            ) from None


def _bearer(metadata: Iterable[Any]) -> str:
    value = next((str(v) for k, v in metadata if k == "authorization"), "")
    kind, _, token = value.partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Refused("this call needs a join token: metadata `authorization: Bearer <token>`", reason=NO_TOKEN)
    return token.split(".", 1)[0]  # a whole token does too; its second part is no secret


class Admission:
    """Makes members of nodes."""

    def __init__(self, store: Store, state: Path, nats_address: str) -> None:
        self._store, self._state, self._nats = store, state, nats_address

    async def admit(self, run_id: str, request: pb.JoinSwarmRequest) -> pb.JoinSwarmResponse:
        """Everything that the node needs. Raises Refused for a run that is over."""
        if not request.node_id or not set(request.node_id) <= _NODE_ID:
            raise InvalidInput(f"node_id {request.node_id!r} must be letters, digits, - and _")
        run = (await self._store.read_run(run_id)).run
        check_joinable(run)
        scope = Scope(run_id, subjects.growth_durable(run_id), f"_INBOX_{request.node_id}")
        jwt = credentials.admit(self._state, scope, request.node_id, request.public_key)
        await self._store.put_member(
            runs.Member(
                node_id=request.node_id, run_id=run_id, host=request.host, joined=True, public_key=request.public_key
            )
        )
        return pb.JoinSwarmResponse(
            run=run,
            nats_jwt=jwt,
            nats_address=self._nats,
            growth_consumer=scope.growth_consumer,
            inbox_prefix=scope.inbox_prefix,
        )


def check_joinable(run: runs.Run) -> None:
    """Raises Refused for a run that no node can join."""
    if machine.over(run.state):
        raise Refused(f"run {run.run_id} is over ({machine.name(run.state)}); there is nothing to join", reason="OVER")
    if json.loads(run.recipe_json).get("deterministic"):
        raise Refused(f"run {run.run_id} is deterministic: one node samples all of it, and none can join", "DETERMINISTIC")


_NODE_ID = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
