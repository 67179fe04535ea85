"""Endpoints of trees: the pages of a run, a tree, and a segment of it."""

from collections.abc import Sequence
from typing import Any

from banyan.policy import batch_of
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.gateway.page.api.endpoint import AFTER, LIMIT, RUN, SEGMENT, TREE, Call, Endpoint
from services.gateway.page.documents import tree_types, trees
from services.gateway.page.http.json_types import NEXT, each, ref
from services.gateway.page.http.parameters import Parameter, cursor, place_of
from services.gateway.page.reads import Reads
from services.gateway.page.tree_reads import TreeReads

_PURPOSES = {
    "train": tree_pb2.TREE_PURPOSE_TRAIN,
    "eval": tree_pb2.TREE_PURPOSE_EVAL,
    "all": tree_pb2.TREE_PURPOSE_UNSPECIFIED,
}
_STATES = {trees.state_name(state): state for state in tree_pb2.TreeState.values() if state}
_FILTERS = (
    LIMIT,
    AFTER,
    Parameter(
        name="purpose",
        about="Purpose of the trees; train if left out, and eval beside a label.",
        kind="choice",
        choices=tuple(_PURPOSES),
    ),
    Parameter(
        name="state", about="Only trees in this state.", kind="choice", choices=tuple(_STATES)
    ),
    Parameter(
        name="step",
        about="Only trees that this training step used: those of its batch, and replayed ones.",
        kind="integer",
        least=1,
        most=2**32 - 1,
    ),
    Parameter(
        name="policy_step",
        about="Only trees whose newest segment is of this policy step.",
        kind="integer",
        most=2**32 - 1,
    ),
    Parameter(
        name="row", about="Only trees of this row: its digest.", kind="hex", least=64, most=64
    ),
    Parameter(name="group", about="Only trees of this group: its id."),
    Parameter(name="label", about="Only trees of this evaluation, such as before-greedy."),
)


class Trees:
    """Handlers of trees."""

    def __init__(self, reads: Reads, whole: TreeReads) -> None:
        self._reads, self._whole = reads, whole

    async def listed(self, call: Call) -> dict[str, Any]:
        query, limit = call.query, call.query["limit"]
        before = place_of("trees", query["after"], int)
        filters = ts.TreeFilter(
            run_id=await self._reads.run_id(call.path["run"]),
            limit=limit + 1,
            before=before[0] if before else 0,
            purpose=_PURPOSES[query["purpose"] or ("eval" if query["label"] else "train")],
            states=[_STATES[query["state"]]] if query["state"] else [],
            batch=None if query["step"] is None else batch_of(query["step"]),
            policy_step=query["policy_step"],
            row_digest=query["row"] or b"",
            group_id=query["group"] or "",
            label=query["label"] or "",
        )
        found = await self._reads.summaries(filters)
        following = cursor("trees", found[limit - 1].number) if len(found) > limit else None
        return {"trees": [trees.summary(tree) for tree in found[:limit]], "next": following}

    async def one(self, call: Call) -> bytes:
        return await self._whole.document(await self._whole.summary(call.path["tree"]))

    async def segment(self, call: Call) -> bytes:
        summary = await self._whole.summary(call.path["tree"])
        return await self._whole.segment(summary, call.path["segment"])

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/api/runs/{run}/trees",
                about="Trees of a run, newest first.",
                handler=self.listed,
                answers={"trees": each(ref("TreeSummary"), "a line each"), "next": NEXT},
                places=(RUN,),
                parameters=_FILTERS,
            ),
            Endpoint(
                method="GET",
                path="/api/trees/{tree}",
                about="A tree with its nodes in depth-first order.",
                handler=self.one,
                answers=tree_types.TREE,
                places=(TREE,),
            ),
            Endpoint(
                method="GET",
                path="/api/trees/{tree}/segments/{segment}",
                about="A segment with its tokens, scores, plan, answer and lineage.",
                handler=self.segment,
                answers=tree_types.SEGMENT,
                places=(TREE, SEGMENT),
            ),
        )
