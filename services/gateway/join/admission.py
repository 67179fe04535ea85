"""Admission of nodes: a valid token gives credentials for its run, and makes a member."""

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from banyan.environments import renderers
from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.wire import schema_version
from services.chassis.messaging import subjects
from services.chassis.renderers import make
from services.gateway.domain import state_machine
from services.gateway.domain.ports import Store
from services.gateway.join import nats_accounts, rpc_allowlist, tokens
from services.gateway.join.nats_permissions import Scope
from services.gateway.join.node_auth import Proofs

_REMEMBER_S = 10.0  # a withdrawn or expired token works for this much longer at most
_REMEMBERED = 1024
_NODE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OURS = re.compile(r"rollout-\d+")  # the supervisor's own nodes
NO_TOKEN = Reason.UNAUTHENTICATED


class TokenVerifier:
    """Checks tokens against the store, and remembers valid ones for a moment."""

    def __init__(self, store: Store, state: Path) -> None:
        self._store, self._proofs = store, Proofs(state)
        self._known: dict[bytes, tuple[str, float]] = {}

    async def run_of(self, metadata: Iterable[Any]) -> str:
        """Return the run that the caller's token opens. Raise Refused, UNAUTHENTICATED."""
        # The rest is the token's fingerprint, or a node's proof.
        secret = _bearer(metadata).partition(".")[0]
        digest = tokens.secret_hash(secret)
        run_id, until = self._known.get(digest, ("", 0.0))
        if until < time.monotonic():
            run_id = await self._look_up(digest)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = (run_id, time.monotonic() + _REMEMBER_S)
        return run_id

    async def node_of(self, metadata: Iterable[Any]) -> tuple[str, str]:
        """Return the run that the caller's token opens, and the calling node.

        Raise Refused, UNAUTHENTICATED.
        """
        pairs = list(metadata)
        run_id = await self.run_of(pairs)
        return run_id, self._proofs.node_of(_proof(pairs), run_id)

    async def _look_up(self, digest: bytes) -> str:
        try:
            return await self._store.read_token(digest)
        except NotFound:
            raise Refused(
                "this join token is wrong or has expired;"
                " ask for a new one where the run was started",
                reason=NO_TOKEN,
            ) from None


def _bearer(metadata: Iterable[Any]) -> str:
    value = next((str(v) for k, v in metadata if k == "authorization"), "")
    kind, _, token = value.partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Refused(
            "this call needs a join token: metadata `authorization: Bearer <token>`",
            reason=NO_TOKEN,
        )
    return token


def _proof(metadata: Iterable[Any]) -> str:
    return _bearer(metadata).partition(".")[2]


class Admission:
    """Admits nodes as members of runs."""

    def __init__(
        self,
        store: Store,
        state: Path,
        nats_address: str,
        queue: Callable[[str], Awaitable[object]],
    ) -> None:
        """Keep `queue`, which makes the consumer of a run's assignments if it is missing.

        Nodes may not make it.
        """
        self._store, self._state, self._nats, self._queue = store, state, nats_address, queue

    async def admit(self, run_id: str, request: pb.JoinSwarmRequest) -> pb.JoinSwarmResponse:
        """Return everything that the node needs. Raise Refused for a run that is over."""
        _check(request)
        run = (await self._store.read_run(run_id)).run
        check_joinable(run)
        scope = Scope(run_id, subjects.growth_durable(run_id), f"_INBOX_{run_id}_{request.node_id}")
        await self._queue(run_id)
        jwt = nats_accounts.admit(self._state, scope, request.node_id, request.public_key)
        await self._store.put_member(
            runs.Member(
                node_id=request.node_id,
                run_id=run_id,
                host=request.host,
                joined=True,
                public_key=request.public_key,
            )
        )
        return pb.JoinSwarmResponse(
            run=run,
            nats_jwt=jwt,
            nats_address=self._nats,
            growth_consumer=scope.growth_consumer,
            inbox_prefix=scope.inbox_prefix,
            node_proof=Proofs(self._state).make(run_id, request.node_id),
        )


def _check(request: pb.JoinSwarmRequest) -> None:
    """Raise InvalidInput or Refused for a request that cannot be admitted.

    InvalidInput: an invalid name or host. Refused: a reserved name, or a node whose messages have
    another schema than this site's.
    """
    named = rpc_allowlist.short(request.node_id)
    if not _NODE_ID.fullmatch(request.node_id):
        raise InvalidInput(f"node_id {named} must be 1 to 64 letters, digits, - and _")
    if _OURS.fullmatch(request.node_id):
        raise Refused(
            f"{named} is what a node of this site is called; give this one another name",
            Reason.NODE_TAKEN,
        )
    rpc_allowlist.check_host(request.host)
    if request.schema != schema_version.digest():
        theirs = rpc_allowlist.short(request.schema) if request.schema else "an older version's"
        raise Refused(
            f"the message schema of node {named} is {theirs}, that of this site"
            f" {schema_version.digest()}: install the site's version of Banyan on the node",
            Reason.OTHER_VERSION,
        )


def check_joinable(run: runs.Run) -> None:
    """Raise Refused for a run that no node can join."""
    if state_machine.over(run.state):
        raise Refused(
            f"run {run.run_id} is over ({state_machine.name(run.state)}); there is nothing to join",
            reason=Reason.OVER,
        )
    recipe = json.loads(run.recipe_json)
    if recipe.get("deterministic"):
        raise Refused(
            f"run {run.run_id} is deterministic: one node samples all of it, and none can join",
            "DETERMINISTIC",
        )
    if recipe.get("resources", {}).get("engine") != "scripted" and not (
        run.vocabulary and run.tokenizer_digest
    ):
        raise Refused(
            f"nothing bounds what nodes that join run {run.run_id} may send: its gateway found no"
            " config.json with a vocab_size, or no tokenizer.json, of model"
            f" {recipe.get('model')!r}; put the model's folder on the gateway's host, and begin"
            " the run again",
            Reason.NO_BOUNDS,
        )
    if recipe.get("environment"):
        _check_environment(run.run_id, recipe)


def _check_environment(run_id: str, recipe: dict[str, Any]) -> None:
    """Raise Refused for a run in whose environment no joined node may act."""
    environment = recipe["environment"]
    if environment.get("external"):
        raise Refused(
            f"tools of run {run_id} change something outside ({environment['external']}), which"
            " only nodes of its own site may have done; none can join",
            Reason.NO_ENVIRONMENT,
        )
    if recipe.get("resources", {}).get("engine") == "scripted":
        return  # a rehearsal, whose tokens are no model's
    settings = environment.get("renderer_settings") or {}
    try:
        make.check_version(renderers.choose(recipe["model"], environment.get("renderer"), settings))
    except InvalidInput as error:
        raise Refused(
            f"nothing here can render answers in run {run_id} again, so no node can join: {error}",
            Reason.NO_ENVIRONMENT,
        ) from None
