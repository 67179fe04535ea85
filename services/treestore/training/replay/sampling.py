"""What a batch is to replay: groups that a plugin draws from the buffer, and successes of rows that failed. Reads only."""

import json
from typing import Any

from sqlalchemy import Connection

from banyan import registry
from banyan.draws import Draws, key
from banyan.errors import InvalidInput
from banyan.plugins import StoredGroup
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control.runs import run_row
from services.treestore.training.replay import buffer, pool


def sample(connection: Connection, request: ts.SampleReplayRequest) -> ts.SampleReplayResponse:
    """The same request on the same batches gets the same answer, whatever was committed since."""
    run_row(connection, request.run_id)
    response = ts.SampleReplayResponse()
    if request.count:
        _groups(connection, request, response)
    used = {tree.tree_id for tree in response.trees}  # a leaf counts once in a batch
    for failed in request.failed:
        found = pool.success(connection, request, failed.row_digest, used)
        if found is not None:
            used.add(found[0])
            response.trees.add(tree_id=found[0], group_id=failed.group_id, leaf=found[1])
    response.tree_ids.extend(tree.tree_id for tree in response.trees)
    return response


def _groups(
    connection: Connection, request: ts.SampleReplayRequest, response: ts.SampleReplayResponse
) -> None:
    policy = registry.build("replay", request.policy, _settings(request.settings_json))
    groups = buffer.stored(connection, request)
    if not groups:
        return
    drawn = _drawn(policy, groups, request)
    _check(request, drawn, {group.group_id for group in groups})
    members = buffer.trees_of(connection, request.run_id, drawn)
    for group_id in drawn:
        for row in members[group_id]:
            response.trees.add(tree_id=row.tree_id, group_id=group_id)


def _drawn(policy: Any, groups: list[StoredGroup], request: ts.SampleReplayRequest) -> list[str]:
    """What the plugin draws. It may be the user's own, so it may raise anything."""
    rng = Draws(key(request.seed, "replay", request.before_batch))
    try:
        return list(policy.sample(groups, request.count, rng))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidInput(
            f"replay plugin {request.policy!r} raised {said}; mend it, or take dots or recent"
        ) from error


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text or "{}")
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise InvalidInput(f"settings_json {text!r} of replay must be a JSON object")
    return settings


def _check(request: ts.SampleReplayRequest, drawn: list[str], known: set[str]) -> None:
    name = f"replay plugin {request.policy!r}"
    strange = [
        group_id for group_id in drawn if not isinstance(group_id, str) or group_id not in known
    ]
    if strange:
        raise InvalidInput(f"{name} drew group {strange[0]!r}, which is not in the buffer")
    if len(set(drawn)) != len(drawn) or len(drawn) > request.count:
        raise InvalidInput(
            f"{name} drew {len(drawn)} groups, {len(set(drawn))} different; asked were {request.count} at most"
        )
