"""Reads of the ways to actions: those that are asked for during a read share the next one."""

import time
from collections.abc import Sequence

from banyan.errors import BanyanError, InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc
from services.chassis.messaging.batcher import Batcher
from services.chassis.rpc import rpc
from services.verifier.environments.asked import Caller

_MOST = 64  # in one call
_WAIT_S = 0.1  # of one call: for the first of its actions to be stored; others then ask again
_CALL_S = 10.0
_ID = 32  # bytes of ids; longer ones would fill the calls that others share


class ActionReads:
    """Reads of the treestore.

    trees: its stub.
    """

    def __init__(self, trees: treestore_service_pb2_grpc.TreeStoreServiceStub) -> None:
        self._trees = trees
        self._batcher = Batcher[ts.ActionKey, ts.ActionWay](self._send, _MOST)

    async def read(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float, caller: Caller
    ) -> ts.ActionWay:
        """Return the way to an action; without a run if it is not stored at the deadline.

        Raises NotFound, or Refused if the claim is not in force, or not that of a joined caller,
        InvalidInput for ids that nothing has.
        """
        if max(len(tree_id), len(action)) > _ID:
            raise InvalidInput(
                f"an id of {max(len(tree_id), len(action))} bytes: trees and actions have {_ID}"
            )
        key = ts.ActionKey(
            tree_id=tree_id,
            epoch=epoch,
            action=action,
            run_id=caller.run_id,
            node_id=caller.node_id,
        )
        end = time.monotonic() + deadline_s
        while True:
            way = await self._batcher.ask(key)
            if way.run_id or time.monotonic() >= end:
                return way

    async def _send(self, keys: Sequence[ts.ActionKey]) -> list[ts.ActionWay | BanyanError]:
        request = ts.ReadActionsRequest(actions=keys, deadline_ms=int(1000 * _WAIT_S))
        response = await rpc.call(self._trees.ReadActions, request, _CALL_S)
        return [_read(outcome) for outcome in response.outcomes]


def _read(outcome: ts.WayOutcome) -> ts.ActionWay | BanyanError:
    if outcome.refused == Reason.LATER:
        return ts.ActionWay()
    if outcome.refused == Reason.NOT_FOUND:
        return NotFound(outcome.detail)
    if outcome.refused:
        return Refused(outcome.detail, outcome.refused)
    return outcome.way
