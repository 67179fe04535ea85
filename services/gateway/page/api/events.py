"""Endpoints of live streams: a run's news, and a tree that grows."""

from collections.abc import Sequence

from services.gateway.page.api.endpoint import RUN, TREE, Call, Endpoint
from services.gateway.page.documents import run_types, tree_types
from services.gateway.page.http.event_stream import EventStream
from services.gateway.page.http.json_types import members, nullable, text
from services.gateway.page.http.parameters import Parameter
from services.gateway.page.http.streams import Hub
from services.gateway.page.reads import Reads
from services.gateway.page.run_clocks import RunClocks
from services.gateway.page.sources import RunSource, TreeSource
from services.gateway.page.tree_reads import TreeReads

_AFTER = Parameter(
    name="after",
    about="Begin with the steps after this one; `Last-Event-ID` comes before it.",
    kind="integer",
    most=2**32 - 1,
)
_OVER = {"over": members({"reason": nullable(text()), "message": nullable(text())})}


class Events:
    """Handlers of live streams."""

    def __init__(self, hub: Hub, reads: Reads, clocks: RunClocks, whole: TreeReads) -> None:
        self._hub, self._reads, self._clocks, self._whole = hub, reads, clocks, whole

    async def run(self, call: Call) -> EventStream:
        run_id = await self._reads.run_id(call.path["run"])
        after = "" if call.query["after"] is None else str(call.query["after"])
        return EventStream(
            self._hub,
            ("run", run_id),
            lambda: RunSource(self._reads, self._clocks, run_id),
            _last(call) or after,
        )

    async def tree(self, call: Call) -> EventStream:
        tree_id = (await self._whole.summary(call.path["tree"])).tree_id
        return EventStream(
            self._hub,
            ("tree", tree_id.hex()),
            lambda: TreeSource(self._whole, tree_id),
            _last(call),
        )

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/api/runs/{run}/events",
                about="Events `news`: the run whenever it changes, with its new steps; `over` at"
                " the end.",
                handler=self.run,
                places=(RUN,),
                parameters=(_AFTER,),
                events={"news": members({**run_types.WHOLE, "steps": run_types.STEPS}), **_OVER},
            ),
            Endpoint(
                method="GET",
                path="/api/trees/{tree}/events",
                about="Events `tree`: the tree whenever it changes; `over` once it is closed or"
                " dropped.",
                handler=self.tree,
                places=(TREE,),
                events={"tree": members(tree_types.TREE), **_OVER},
            ),
        )


def _last(call: Call) -> str:
    return str(call.request.headers.get("last-event-id", ""))[:100]
