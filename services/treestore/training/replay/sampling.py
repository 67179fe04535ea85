"""Choice of the trees that a batch replays: groups drawn by a plugin, and successes of examples
that failed. Reads only.
"""

import json
from typing import Any

from sqlalchemy import Connection

from banyan import registry
from banyan.draws import Draws, key
from banyan.errors import InvalidInput, users_code, with_kind
from banyan.plugins import StoredGroup
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control.runs import run_row
from services.treestore.training.replay import buffer, pool


def sample(connection: Connection, request: ts.SampleReplayRequest) -> ts.SampleReplayResponse:
    """Return the trees to replay; they depend on the request and on the batches before it alone."""
    run_row(connection, request.run_id)
    response = ts.SampleReplayResponse()
    if request.count:
        _add_groups(connection, request, response)
    used = {tree.tree_id for tree in response.trees}  # a leaf counts once in a batch
    for failed in request.failed:
        success = pool.success(connection, request, failed.row_digest, used)
        if success is not None:
            tree_id, leaf = success
            used.add(tree_id)
            response.trees.add(tree_id=tree_id, group_id=failed.group_id, leaf=leaf)
    response.tree_ids.extend(tree.tree_id for tree in response.trees)
    return response


def _add_groups(
    connection: Connection, request: ts.SampleReplayRequest, response: ts.SampleReplayResponse
) -> None:
    policy = registry.build("replay", request.policy, _settings(request.settings_json))
    groups = buffer.stored(connection, request)
    if not groups:
        return
    drawn = _draw(policy, groups, request)
    _check(request, drawn, {group.group_id for group in groups})
    trees = buffer.trees_of(connection, request.run_id, drawn)
    for group_id in drawn:
        for row in trees[group_id]:
            response.trees.add(tree_id=row.tree_id, group_id=group_id)


def _draw(policy: Any, groups: list[StoredGroup], request: ts.SampleReplayRequest) -> list[str]:
    """Return the groups that the plugin draws. Raises InvalidInput if it raises."""
    rng = Draws(key(request.seed, "replay", request.before_batch))

    def message(error: BaseException) -> str:
        raised = f"replay plugin {request.policy!r} raised {with_kind(error)}"
        return f"{raised}; mend it, or take dots or recent"

    with users_code(message, passing=()):
        return list(policy.sample(groups, request.count, rng))


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
    for group_id in drawn:
        if not isinstance(group_id, str) or group_id not in known:
            raise InvalidInput(f"{name} drew group {group_id!r}, which is not in the buffer")
    if len(set(drawn)) != len(drawn) or len(drawn) > request.count:
        raise InvalidInput(
            f"{name} drew {len(drawn)} groups, {len(set(drawn))} different;"
            f" asked were {request.count} at most"
        )
