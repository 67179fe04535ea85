"""LearnerService: status, checkpoints, weights for joined nodes, advantages for inspection."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from banyan import registry
from banyan.credit.estimate import Credit, ScoredTree
from banyan.errors import InvalidInput, TemporaryError
from banyan.plugins import Estimator
from banyan.v1 import learner_service_pb2 as messages
from banyan.v1 import learner_service_pb2_grpc, tree_pb2
from banyan.wire.segments import policy_to_wire
from services.chassis.weights import lock
from services.learner.data import explain, from_store, replay
from services.learner.data.prepare import batch_advantages
from services.learner.learner import Learner
from services.learner.weights.collective import HandOverServer
from services.learner.weights.folder import WeightFolder

PIECE_BYTES = 1 << 20
SERVICE = messages.DESCRIPTOR.services_by_name["LearnerService"].full_name


class LearnerServicer(learner_service_pb2_grpc.LearnerServiceServicer):
    """Answers for the learner.

    learner: None while it loads its model
    hand_overs: set where weights are handed over by collectives
    """

    def __init__(self) -> None:
        self.learner: Learner | None = None
        self.hand_overs: HandOverServer | None = None

    def _ready(self) -> Learner:
        if self.learner is None:
            raise TemporaryError(
                "the learner is still loading its model; ask again in a few seconds", 2.0
            )
        return self.learner

    async def GetStatus(
        self, request: Any, context: Any
    ) -> messages.LearnerServiceGetStatusResponse:
        if self.learner is None:
            return messages.LearnerServiceGetStatusResponse(activity="loading")
        at = self.learner.at
        return messages.LearnerServiceGetStatusResponse(
            run_id=self.learner.run_id,
            policy=policy_to_wire(at.version),
            next_ordinal=at.next_ordinal,
            activity=at.activity,
        )

    async def Checkpoint(self, request: Any, context: Any) -> messages.CheckpointResponse:
        return messages.CheckpointResponse(path=await self._ready().checkpoint())

    async def FetchWeights(
        self, request: Any, context: Any
    ) -> AsyncIterator[messages.FetchWeightsResponse]:
        for piece in pieces(self._ready().weights, request.digest, request.offset):
            yield piece

    async def HandOver(
        self, request: Any, context: Any
    ) -> AsyncIterator[messages.HandOverResponse]:
        self._ready()
        if self.hand_overs is None:
            raise InvalidInput(
                "this run's recipe hands weights over otherwise: resources.weights is not nccl"
            )
        async for response in self.hand_overs.serve(request, context.peer()):
            yield response

    async def EstimateAdvantages(
        self, request: messages.EstimateAdvantagesRequest, context: Any
    ) -> messages.EstimateAdvantagesResponse:
        estimator = None
        if request.estimator_json or self.learner is None:
            estimator = _estimator(request.estimator_json)
        groups = await asyncio.to_thread(grouped, request.trees)  # seconds for many trees
        if self.learner is None:
            assert estimator is not None
            credits = await asyncio.to_thread(
                batch_advantages, groups, estimator, replay.none_stale
            )
        else:
            credits = await self.learner.preparer.batch_advantages(groups, estimator)
        advantages = await asyncio.to_thread(_segments, credits)
        return messages.EstimateAdvantagesResponse(advantages=advantages)


def pieces(
    weights: WeightFolder, digest: bytes, offset: int
) -> Iterator[messages.FetchWeightsResponse]:
    """Yield a version's bytes from an offset on.

    The open file outlives its name, so a long fetch ends well. Raises InvalidInput for an offset
    beyond the end, NotFound for a version that is gone.
    """
    manifest = weights.find(digest)
    if offset > manifest.bytes:
        raise InvalidInput(
            f"offset {offset} is beyond the {manifest.bytes} bytes of weights {digest.hex()[:12]}"
        )
    text = manifest.to_json()
    with lock.held(manifest.manifest_path) as file:
        while offset < manifest.bytes or text:
            data = os.pread(file.fileno(), PIECE_BYTES, offset)
            if not data and offset < manifest.bytes:
                raise TemporaryError(
                    f"{manifest.path} ends at byte {offset} of {manifest.bytes};"
                    " fetch the newest policy instead"
                )
            yield messages.FetchWeightsResponse(
                offset=offset, data=data, total=manifest.bytes, manifest_json=text
            )
            offset += len(data)
            text = ""  # the first piece alone carries the manifest


def _estimator(text: str) -> Estimator:
    """Return the estimator of a request, which whitens the batch only if its settings say so."""
    try:
        parsed = json.loads(text)
        name, settings = parsed["name"], parsed.get("settings", {})
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise ValueError("not of the right kinds")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"estimator_json {text!r} must be {{'name': …, 'settings': {{…}}}} as JSON"
        ) from None
    known = getattr(registry.find("optimise", name), "__dataclass_fields__", {})
    defaults = {"whiten": False} if "whiten" in known else {}
    return registry.estimator(name, defaults | settings)  # type: ignore[no-any-return]


def grouped(trees: Iterable[tree_pb2.Tree]) -> list[tuple[str, list[ScoredTree]]]:
    """Return the trees of a request by group; all groups are one batch.

    Raises InvalidInput for a tree that is given twice.
    """
    groups: dict[str, list[tree_pb2.Tree]] = {}
    tree_ids: set[bytes] = set()
    for tree in trees:
        if tree.spec.tree_id in tree_ids:
            raise InvalidInput(
                f"tree {tree.spec.tree_id.hex()} is given twice; its leaves would count twice:"
                " send it once"
            )
        tree_ids.add(tree.spec.tree_id)
        groups.setdefault(tree.spec.group_id, []).append(tree)
    return [
        (group_id, [from_store.scored_tree(tree) for tree in members])
        for group_id, members in groups.items()
    ]


def _segments(credits: Iterable[Credit]) -> list[messages.SegmentAdvantage]:
    """Return the credit of each segment, as `banyan advantages` prints it."""
    return [
        _segment(view.tree.tree_id, line)
        for credit in credits
        for index, view in enumerate(credit.group.trees)
        for line in explain.lines(credit, index)
    ]


def _segment(tree_id: bytes, line: explain.Line) -> messages.SegmentAdvantage:
    return messages.SegmentAdvantage(
        tree_id=tree_id,
        segment=line.segment,
        paths=line.paths,
        advantage=line.advantage,
        positive=line.positive,
        negative=line.negative,
    )
