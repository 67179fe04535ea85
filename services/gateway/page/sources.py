"""Sources of streams: a run's news, and a tree that grows."""

import asyncio
import time
from typing import Any

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire import plain_data
from services.gateway.page.documents import runs, trees
from services.gateway.page.http.errors import encoded
from services.gateway.page.http.streams import Event
from services.gateway.page.reads import Reads
from services.gateway.page.run_clocks import RunClocks
from services.gateway.page.tree_reads import TreeReads

_AGAIN_S = 10.0  # after which news of a working run are sent again: its times move
_DIGITS = 10  # of the largest step
MOST_STEPS = 1000  # in one event; `metrics` has all


class RunSource:
    """The news of a run, each with the steps since the last."""

    def __init__(self, reads: Reads, clocks: RunClocks, run_id: str) -> None:
        self._reads, self._clocks, self._run_id = reads, clocks, run_id
        self._sent: bytes = b""
        self._sent_at = 0.0
        self._number = -1  # of the last policy that was sent; -1 before any
        self._step = -1
        self._looked: int | None = None  # step of the run at the last look for policies
        self.over = False

    async def poll(self) -> list[Event]:
        """Return the news, if there are any."""
        answer, members = await self._read()
        seen = _fingerprint(answer, members)
        steps = await self._new_steps(answer.run.step)
        due = time.monotonic() - self._sent_at > _AGAIN_S and answer.run.state in runs.WORKING
        self.over = answer.run.state in plain_data.OVER
        if seen == self._sent and not steps and not due:
            return []
        self._sent, self._sent_at = seen, time.monotonic()
        return [await self._event(answer, members, steps)]

    async def first(self, last: str) -> list[Event]:
        """Return the run as it is, with its steps after the last one that the reader has."""
        answer, members = await self._read()
        after = int(last) if last.isascii() and last.isdigit() and len(last) <= _DIGITS else -1
        policies = await self._reads.policies(self._run_id)
        if self._number < 0:  # nobody else reads it: the loop goes on from here
            self._number = policies[-1].number if policies else 0
            self._sent, self._sent_at = _fingerprint(answer, members), time.monotonic()
        steps = runs.metrics(policies, after)
        self._step = max([self._step, *(step["step"] for step in steps)])
        return [await self._event(answer, members, steps)]

    async def _read(self) -> tuple[rs.ReadRunResponse, list[rs.Member]]:
        return await asyncio.gather(
            self._reads.run(self._run_id), self._reads.members(self._run_id)
        )

    async def _new_steps(self, newest: int) -> list[dict[str, Any]]:
        if newest == self._looked:  # each policy that is stored moves the run's step
            return []
        self._looked = newest
        policies = await self._reads.policies(self._run_id, after=max(0, self._number))
        if policies:
            self._number = policies[-1].number
        return runs.metrics(policies, -1)

    async def _event(
        self, answer: rs.ReadRunResponse, members: list[rs.Member], steps: list[dict[str, Any]]
    ) -> Event:
        self._step = max([self._step, *(step["step"] for step in steps)])
        document = runs.whole(answer, members, await self._clocks.left_s(answer))
        document["steps"] = steps[-MOST_STEPS:]
        return Event("news", encoded(document), str(self._step) if self._step >= 0 else "")


def _fingerprint(answer: rs.ReadRunResponse, members: list[rs.Member]) -> bytes:
    """Return bytes that change with the run, but neither with its clock nor with heartbeats."""
    known = rs.ReadRunResponse(run=answer.run, progress=answer.progress)
    shown = [(m.node_id, m.host, m.joined, m.present, m.trees, m.policy_step) for m in members]
    return known.SerializeToString(deterministic=True) + repr(shown).encode()


class TreeSource:
    """A tree, whenever its revision changes."""

    def __init__(self, whole: TreeReads, tree_id: bytes) -> None:
        self._whole, self._tree_id = whole, tree_id
        self._revision = ""
        self.over = False

    async def poll(self) -> list[Event]:
        """Return the tree if it has changed."""
        summary = await self._whole.summary(self._tree_id)
        revision = trees.revision(summary)
        self.over = summary.state in trees.OVER
        if revision == self._revision:
            return []
        self._revision = revision
        return [await self._event(summary)]

    async def first(self, last: str) -> list[Event]:
        """Return the tree as it is, unless the reader has that."""
        summary = await self._whole.summary(self._tree_id)
        revision = trees.revision(summary)
        self._revision = self._revision or revision  # nobody else reads it: the loop goes on here
        return [] if revision == last else [await self._event(summary)]

    async def _event(self, summary: ts.TreeSummary) -> Event:
        return Event("tree", await self._whole.document(summary), trees.revision(summary))
