"""gRPC in: status, checkpoint on request, weights for joined nodes, advantages for people and tests."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from banyan import registry
from banyan.errors import InvalidInput, TemporaryError
from banyan.plugins import Estimator
from banyan.v1 import learner_service_pb2 as messages
from banyan.v1 import learner_service_pb2_grpc, tree_pb2
from services.chassis import weighthold
from services.learner import convert, credit
from services.learner.credit import Credit
from services.learner.learner import Learner
from services.learner.weights import WeightFolder

PIECE_BYTES = 1 << 20
SERVICE = messages.DESCRIPTOR.services_by_name["LearnerService"].full_name


class LearnerServicer(learner_service_pb2_grpc.LearnerServiceServicer):
    """Answers for the learner once `learner` is set; before that it is loading."""

    def __init__(self) -> None:
        self.learner: Learner | None = None

    def _ready(self) -> Learner:
        if self.learner is None:
            raise TemporaryError("the learner is still loading its model; ask again in a few seconds", 2.0)
        return self.learner

    async def GetStatus(self, request: Any, context: Any) -> messages.LearnerServiceGetStatusResponse:
        if self.learner is None:
            return messages.LearnerServiceGetStatusResponse(activity="loading")
        at = self.learner.at
        policy = tree_pb2.PolicyRef(learner_epoch=at.epoch, step=at.step, digest=at.digest)
        return messages.LearnerServiceGetStatusResponse(
            run_id=self.learner.run_id, policy=policy, next_ordinal=at.next_ordinal, activity=at.activity
        )

    async def Checkpoint(self, request: Any, context: Any) -> messages.CheckpointResponse:
        return messages.CheckpointResponse(path=await self._ready().checkpoint())

    async def FetchWeights(self, request: Any, context: Any) -> AsyncIterator[messages.FetchWeightsResponse]:
        for piece in pieces(self._ready().weights, request.digest, request.offset):
            yield piece

    async def EstimateAdvantages(
        self, request: messages.EstimateAdvantagesRequest, context: Any
    ) -> messages.EstimateAdvantagesResponse:
        estimator = _estimator(request.estimator_json, self.learner)
        return messages.EstimateAdvantagesResponse(advantages=list(segment_advantages(list(request.trees), estimator)))


def pieces(weights: WeightFolder, digest: bytes, offset: int) -> Iterator[messages.FetchWeightsResponse]:
    """A version's bytes from an offset on. The open file outlives its name, so a long fetch ends well."""
    manifest = weights.find(digest)
    if offset > manifest.bytes:
        raise InvalidInput(f"offset {offset} is beyond the {manifest.bytes} bytes of weights {digest.hex()[:12]}")
    text = manifest.to_json()
    with weighthold.held(manifest.manifest_path) as file:
        while offset < manifest.bytes or text:
            data = os.pread(file.fileno(), PIECE_BYTES, offset)
            yield messages.FetchWeightsResponse(offset=offset, data=data, total=manifest.bytes, manifest_json=text)
            offset, text = offset + len(data), ""


def _estimator(text: str, learner: Learner | None) -> Estimator:
    """The estimator named in a request; without one, the run's own."""
    if not text and learner is not None:
        return learner.estimator
    try:
        said = json.loads(text)
        name, settings = said["name"], said.get("settings", {})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(f"estimator_json {text!r} must be {{'name': …, 'settings': {{…}}}} as JSON") from None
    return registry.build("optimise", name, settings)  # type: ignore[no-any-return]


def segment_advantages(trees: list[tree_pb2.Tree], estimator: Estimator) -> Iterator[messages.SegmentAdvantage]:
    """Credit of each segment; trees of one group are compared."""
    groups: dict[str, list[tree_pb2.Tree]] = {}
    for tree in trees:
        groups.setdefault(tree.spec.group_id, []).append(tree)
    for group_id, members in groups.items():
        scored = [convert.scored_tree(t) for t in members]
        yield from _of_group(credit.estimate(group_id, scored, estimator, lambda _tree, _leaf: False))


def _of_group(found: Credit) -> Iterator[messages.SegmentAdvantage]:
    node_G_N = found.advantages.node_G_N
    for index, view in enumerate(found.group.trees):
        leaf_L = found.advantages.leaf_G_L[index]
        through: dict[bytes, dict[int, float]] = {}  # segment → leaf → its advantage there
        for leaf in view.scored_L:
            for node in view.path(leaf):
                value = float(node_G_N[index][node] if node_G_N else leaf_L[leaf])
                through.setdefault(view.nodes[node].segment.id, {}).setdefault(leaf, value)
        for segment, values in through.items():
            yield messages.SegmentAdvantage(
                tree_id=view.tree.tree_id,
                segment=segment,
                paths=len(values),
                advantage=sum(values.values()) / len(values),
                positive=sum(max(v, 0.0) for v in values.values()),
                negative=sum(min(v, 0.0) for v in values.values()),
            )
