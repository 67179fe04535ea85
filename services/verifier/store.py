"""The treestore over gRPC. Recipes are cached: they never change during a run."""

import asyncio
import json
from collections.abc import Mapping, Sequence

import grpc.aio

from banyan.errors import InvalidInput
from banyan.recipe import Filter, Recipe
from banyan.recipe_loader import group_scorers, votes
from banyan.v1 import (
    events_pb2,
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from services.chassis.rpc import rpc
from services.verifier.environments.action_reads import ActionReads
from services.verifier.environments.asked import Caller
from services.verifier.ports import Group, Transcript, TreeStanding
from services.verifier.sandbox.worker import ScorerSpec

_OVER = (tree_pb2.TREE_STATE_CLOSED, tree_pb2.TREE_STATE_CONSUMED, tree_pb2.TREE_STATE_DROPPED)
_CALL_S = 10.0
# For the leave to act outside. One that comes too late is none, and nobody gets another: a store
# that stands still for a while must not cost the path.
_LEAVE_S = 30.0
_PATIENCE_S = 30.0  # in which an answer that cannot be had again is offered to the store
_MAX_RUNS = 256  # recipes in the cache


class GrpcStore:
    """Reads leaves, trees and recipes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._trees = treestore_service_pb2_grpc.TreeStoreServiceStub(channel)
        self._runs = runstore_service_pb2_grpc.RunStoreServiceStub(channel)
        self._actions = ActionReads(self._trees)
        self._specs: dict[str, Mapping[str, ScorerSpec]] = {}
        self._reading: dict[str, asyncio.Task[Mapping[str, ScorerSpec]]] = {}

    async def read_leaves(
        self, leaves: Sequence[events_pb2.LeafFinished], deadline_s: float
    ) -> tuple[list[Transcript], int]:
        """Return transcripts of the leaves that the store accepted, and the number of leaves at the
        end that one answer has no room for.
        """
        keys = [
            treestore_service_pb2.LeafKey(
                tree_id=leaf.tree_id, leaf=leaf.leaf, claim_epoch=leaf.claim_epoch
            )
            for leaf in leaves
        ]
        request = treestore_service_pb2.ReadLeavesRequest(
            leaves=keys, deadline_ms=int(1000 * deadline_s)
        )
        response = await rpc.call(self._trees.ReadLeaves, request, deadline_s + _CALL_S)
        return list(response.transcripts), response.unread

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float, caller: Caller
    ) -> treestore_service_pb2.ActionWay:
        """Return the way to an action; without a run if it is not stored at the deadline."""
        return await self._actions.read(tree_id, epoch, action, deadline_s, caller)

    async def begin_effect(self, tree_id: bytes, epoch: int, action: bytes, tool: str) -> bool:
        """Note an effect of an action before it begins; return False if it was noted before."""
        request = treestore_service_pb2.BeginEffectRequest(
            tree_id=tree_id, epoch=epoch, action=action, tool=tool
        )
        response = await rpc.call(self._trees.BeginEffect, request, _LEAVE_S)
        return bool(response.begun)

    async def end_effect(
        self, tree_id: bytes, action: bytes, receipt: tree_pb2.Receipt, text: str
    ) -> None:
        """Keep the answer to an action whose effect was begun."""
        request = treestore_service_pb2.EndEffectRequest(
            tree_id=tree_id, action=action, receipt=receipt, text=text
        )
        await rpc.call(self._trees.EndEffect, request, _CALL_S, _PATIENCE_S)

    async def standing(self, tree_id: bytes) -> TreeStanding | None:
        """Return the standing of a tree; None if the store does not know it."""
        request = treestore_service_pb2.ListTreesRequest(
            filter=treestore_service_pb2.TreeFilter(tree_ids=[tree_id])
        )
        trees = (await rpc.call(self._trees.ListTrees, request, _CALL_S)).trees
        if not trees:
            return None
        return TreeStanding(claim_epoch=trees[0].claim_epoch, over=trees[0].state in _OVER)

    async def read_group(self, tree_id: bytes, claim_epoch: int, deadline_s: float) -> Group:
        """Return the group of a tree whose growth ended under this claim."""
        request = treestore_service_pb2.ReadGroupRequest(
            tree_id=tree_id, claim_epoch=claim_epoch, deadline_ms=int(1000 * deadline_s)
        )
        response: Group = await rpc.call(self._trees.ReadGroup, request, deadline_s + _CALL_S)
        return response

    async def scorers(self, run_id: str) -> Mapping[str, ScorerSpec]:
        """Return the scorers of a run's recipe by name.

        The leaves that come first ask together, and one call answers them all.
        """
        if run_id in self._specs:
            return self._specs[run_id]
        if run_id not in self._reading:
            reading = self._reading[run_id] = asyncio.create_task(self._read_scorers(run_id))
            reading.add_done_callback(lambda done: self._done(run_id, done))
        return await asyncio.shield(self._reading[run_id])

    def _done(self, run_id: str, reading: asyncio.Task[Mapping[str, ScorerSpec]]) -> None:
        del self._reading[run_id]
        # Retrieve the exception, so that asyncio does not log it if nobody waits any more.
        _ = reading.cancelled() or reading.exception()

    async def _read_scorers(self, run_id: str) -> Mapping[str, ScorerSpec]:
        request = runstore_service_pb2.ReadRunRequest(run_id=run_id)
        run = (await rpc.call(self._runs.ReadRun, request, _CALL_S)).run
        specs = specs_of(run.recipe_json)
        if len(self._specs) >= _MAX_RUNS:
            self._specs.pop(next(iter(self._specs)))
        self._specs[run_id] = specs
        return specs


def specs_of(recipe_json: str) -> dict[str, ScorerSpec]:
    """Return the scorers of a recipe by name. Raise InvalidInput if it is malformed."""
    try:
        recipe = Recipe.model_validate_json(recipe_json)
    except ValueError as error:
        raise InvalidInput(f"the stored recipe is not one: {error}") from None
    counted = votes.scorers(recipe)
    parts = {part.name: part for part in (*recipe.filter, *recipe.eval.filter, *counted)}
    names = (*recipe.scorers, *recipe.eval_scorers, *(part.name for part in counted))
    return {name: spec_of(recipe, parts.get(name) or Filter(name=name)) for name in names}


def spec_of(recipe: Recipe, part: Filter) -> ScorerSpec:
    """Return a scorer for a recipe's rows, with the limits that its part names."""
    return ScorerSpec(
        name=part.name,
        settings=part.settings,
        group=bool(group_scorers.scorers([part])),
        withheld=recipe.task.files,
        unconfined=recipe.allow_unconfined_scorers,
        deadline_s=part.deadline_s,
        memory_mb=part.memory_mb,
        concurrency=part.concurrency,
        network=part.network,
        secrets=tuple(part.secrets),
    )


def row_of(transcript: Transcript) -> dict[str, object]:
    """Return the task's row of a transcript. Raise InvalidInput if it is not a JSON object."""
    tree = transcript.key.tree_id.hex()[:12]
    try:
        row = json.loads(transcript.row_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the row of tree {tree} is not JSON: {error}") from None
    if not isinstance(row, dict):
        kind = type(row).__name__
        raise InvalidInput(f"the row of tree {tree} is {kind}, not an object")
    return row
