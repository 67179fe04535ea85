"""Treestore and run store that serve a corpus: a run for each subject's scorer and settings."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from banyan.digest import blake, canonical
from banyan.v1 import events_pb2 as ev
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from services.chassis.messaging import subjects
from services.treestore.queries import transcripts
from tests.adversarial.corpus.case import Case


@dataclass(frozen=True)
class Stored:
    """A case as a leaf.

    tree: its own, with its peers as leaves before it.
    """

    case: Case
    run_id: str
    tree: bytes

    def leaf(self, number: int) -> tree_pb2.LeafRef:
        """Return the place of a completion of its group; the last is the one to judge."""
        return tree_pb2.LeafRef(segment=blake(self.tree, str(number).encode()), end=1)

    @property
    def place(self) -> bytes:
        """Segment of the leaf to judge."""
        return bytes(self.leaf(len(self.case.subject.peers)).segment)

    def transcripts(self) -> Iterator[ts.LeafTranscript]:
        """Yield the group; only the one to judge owes a score."""
        texts = (*self.case.subject.peers, self.case.completion)
        for number, text in enumerate(texts):
            is_judged = number == len(texts) - 1
            yield ts.LeafTranscript(
                key=ts.LeafKey(tree_id=self.tree, leaf=self.leaf(number), claim_epoch=1),
                run_id=self.run_id,
                completion=text,
                row_json=json.dumps(dict(self.case.subject.row)),
                scorers=[self.case.subject.scorer] if is_judged else [],
            )


def stored(cases: Sequence[Case]) -> list[Stored]:
    """Return cases as leaves."""
    return [
        Stored(case, f"corpus-{_digest(case)}", blake(b"corpus", str(number).encode()))
        for number, case in enumerate(cases)
    ]


def _digest(case: Case) -> str:
    subject = case.subject
    return blake(canonical([subject.scorer, dict(subject.settings)])).hex()[:12]


class Stores(ts_grpc.TreeStoreServiceServicer, rs_grpc.RunStoreServiceServicer):
    """Both stores."""

    def __init__(self, leaves: Sequence[Stored]) -> None:
        self._by_place = {leaf.place: leaf for leaf in leaves}
        self._by_tree = {leaf.tree: leaf for leaf in leaves}
        self._subjects = {leaf.run_id: leaf.case.subject for leaf in leaves}

    async def ReadLeaves(self, request: ts.ReadLeavesRequest, context: Any) -> Any:
        found = [self._by_place[key.leaf.segment] for key in request.leaves]
        return transcripts.answer(request.leaves, [t for leaf in found for t in leaf.transcripts()])

    async def ReadGroup(self, request: ts.ReadGroupRequest, context: Any) -> Any:
        transcripts = self._by_tree[request.tree_id].transcripts()
        return ts.ReadGroupResponse(settled=True, whole=True, transcripts=transcripts)

    async def ReadRun(self, request: rs.ReadRunRequest, context: Any) -> Any:
        subject = self._subjects[request.run_id]
        scorer = {"name": subject.scorer, "settings": dict(subject.settings)}
        recipe = {"name": "c", "model": "m", "task": {"name": "arithmetic"}, "filter": [scorer]}
        run = rs.Run(run_id=request.run_id, recipe_json=json.dumps(recipe))
        return rs.ReadRunResponse(run=run)


def messages(leaves: Sequence[Stored]) -> Iterator[tuple[str, Any]]:
    """Yield subject and message of each event: leaves, and the growth's ends of groups."""
    for run_id in dict.fromkeys(leaf.run_id for leaf in leaves):
        of_run = [leaf for leaf in leaves if leaf.run_id == run_id]
        for start in range(0, len(of_run), subjects.MOST_LEAVES):
            part = of_run[start : start + subjects.MOST_LEAVES]
            if part[0].case.subject.peers:
                trees = [
                    ev.TreeGrown(run_id=run_id, tree_id=leaf.tree, claim_epoch=1) for leaf in part
                ]
                yield subjects.lineage(run_id, "grown"), ev.TreesGrown(trees=trees)
            else:
                ended = [
                    ev.LeafFinished(
                        run_id=run_id, tree_id=leaf.tree, claim_epoch=1, leaf=leaf.leaf(0)
                    )
                    for leaf in part
                ]
                yield subjects.lineage(run_id, "leaf"), ev.LeavesFinished(leaves=ended)
