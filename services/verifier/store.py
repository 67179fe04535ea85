"""The treestore over gRPC. Recipes are cached: they never change during a run."""

import json
from collections.abc import Mapping, Sequence

import grpc.aio

from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import group_scorers
from banyan.v1 import (
    events_pb2,
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from services.chassis.rpc import rpc
from services.verifier.ports import Group, Transcript, TreeStanding
from services.verifier.sandbox.worker import ScorerSpec

_OVER = (tree_pb2.TREE_STATE_CLOSED, tree_pb2.TREE_STATE_CONSUMED, tree_pb2.TREE_STATE_DROPPED)
_CALL_S = 10.0
_MAX_RUNS = 256  # recipes in the cache


class GrpcStore:
    """Reads leaves, trees and recipes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._trees = treestore_service_pb2_grpc.TreeStoreServiceStub(channel)
        self._runs = runstore_service_pb2_grpc.RunStoreServiceStub(channel)
        self._specs: dict[str, Mapping[str, ScorerSpec]] = {}

    async def read_leaves(
        self, leaves: Sequence[events_pb2.LeafFinished], deadline_s: float
    ) -> list[Transcript]:
        """Return transcripts of the leaves that the store accepted."""
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
        return list(response.transcripts)

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float
    ) -> treestore_service_pb2.ReadActionResponse:
        """Return the way to an action; empty if it is not stored at the deadline."""
        request = treestore_service_pb2.ReadActionRequest(
            tree_id=tree_id, epoch=epoch, action=action, deadline_ms=int(1000 * deadline_s)
        )
        response: treestore_service_pb2.ReadActionResponse = await rpc.call(
            self._trees.ReadAction, request, deadline_s + _CALL_S
        )
        return response

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
        """Return the scorers of a run's recipe by name."""
        if run_id not in self._specs:
            request = runstore_service_pb2.ReadRunRequest(run_id=run_id)
            run = (await rpc.call(self._runs.ReadRun, request, _CALL_S)).run
            if len(self._specs) >= _MAX_RUNS:
                self._specs.pop(next(iter(self._specs)))
            self._specs[run_id] = specs_of(run.recipe_json)
        return self._specs[run_id]


def specs_of(recipe_json: str) -> dict[str, ScorerSpec]:
    """Return the scorers of a recipe by name. Raise InvalidInput if it is malformed."""
    try:
        recipe = Recipe.model_validate_json(recipe_json)
    except ValueError as error:
        raise InvalidInput(f"the stored recipe is not one: {error}") from None
    settings = {f.name: f.settings for f in (*recipe.filter, *recipe.eval.filter)}
    names_of_groups = group_scorers.scorers(recipe.filter)
    names = (*recipe.scorers, *recipe.eval_scorers)
    task_files = (recipe.task.path,) if recipe.task.name == "file" else ()
    return {
        name: ScorerSpec(
            name=name,
            settings=settings.get(name, {}),
            group=name in names_of_groups,
            withheld=task_files,
            unconfined=recipe.allow_unconfined_scorers,
        )
        for name in names
    }


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
