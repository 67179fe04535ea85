"""Publication of new trees on the log, until the store shows them.

Opening a tree twice changes nothing.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from banyan.digest import blake
from banyan.errors import BanyanError
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.batcher import Batcher
from services.chassis.messaging.chunks import chunked
from services.chassis.process import telemetry
from services.gateway.domain.ports import Log

# After this long without the tree in the store, it is published again: the broker may have lost it.
REOPEN_S = 5.0
Key = int | str


@dataclass(slots=True)
class _Opened:
    specs: list[tree_pb2.TreeSpec]
    acked_at: float = -math.inf  # monotonic time at which the broker had acknowledged all


class Publisher:
    """A publisher of TreesOpened of one run under the gateway's epoch.

    Keys are group ordinals, or labels of evaluations.
    """

    def __init__(self, log: Log, run_id: str, epoch: int) -> None:
        self._log, self._run_id, self._epoch = log, run_id, epoch
        self._opened: dict[Key, _Opened] = {}
        self._batcher = Batcher[tree_pb2.TreeSpec, None](self._send, subjects.MOST_TREES)

    def __len__(self) -> int:
        """Return the number of keys that the store is not known to have."""
        return len(self._opened)

    def forget(self, stored: Callable[[Key], bool]) -> None:
        """Forget the keys that the store has for certain."""
        self._opened = {key: opened for key, opened in self._opened.items() if not stored(key)}

    async def reopen(self) -> None:
        """Publish trees again that the store has not shown for a while, or that broke off."""
        for opened in list(self._opened.values()):
            await self._send_all(opened)

    async def open(self, key: Key, make: Callable[[], Iterable[tree_pb2.TreeSpec]]) -> None:
        """Publish the trees of `key`, unless that was done a moment ago.

        The same specs go out each time.
        """
        if key not in self._opened:
            self._opened[key] = _Opened(list(make()))
        await self._send_all(self._opened[key])

    async def _send_all(self, opened: _Opened) -> None:
        if time.monotonic() - opened.acked_at < REOPEN_S:
            return
        await asyncio.gather(*(self._publish(spec) for spec in opened.specs))
        opened.acked_at = time.monotonic()

    async def _publish(self, spec: tree_pb2.TreeSpec) -> None:
        if spec.traceparent:
            return await self._batcher.ask(spec)
        tree = spec.tree_id.hex()
        with telemetry.span(
            "gateway.open", banyan_run=self._run_id, banyan_tree=tree, banyan_group=spec.group_id
        ) as span:
            spec.traceparent = span.traceparent
            span.say(**{"gen_ai.input.messages": lambda: spec.messages_json})
            await self._batcher.ask(spec)
        telemetry.count("banyan.trees.opened", banyan_run=self._run_id)

    async def _send(self, specs: Sequence[tree_pb2.TreeSpec]) -> list[BanyanError | None]:
        results: list[BanyanError | None] = []
        for part in chunked(specs, tree_pb2.TreeSpec.ByteSize, subjects.MOST_TREES):
            try:
                await self._publish_opened(part)
                results += [None] * len(part)
            except BanyanError as error:
                results += [error] * len(part)
        return results

    async def _publish_opened(self, specs: Sequence[tree_pb2.TreeSpec]) -> None:
        opened = [events_pb2.TreeOpened(spec=spec, gateway_epoch=self._epoch) for spec in specs]
        # The epoch is in the id: a message that the store refused of an older gateway must not
        # hide a newer gateway's as a duplicate.
        msg_id = f"opened-{self._epoch}-{blake(*sorted(spec.tree_id for spec in specs)).hex()}"
        traceparent = specs[0].traceparent if len(specs) == 1 else ""
        subject = subjects.lineage(self._run_id, "opened")
        await self._log.publish(
            subject, events_pb2.TreesOpened(trees=opened), msg_id, traceparent=traceparent
        )
