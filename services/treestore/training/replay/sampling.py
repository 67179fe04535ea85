"""Choice of the trees that a batch replays: groups drawn by a plugin, and successes of examples
that failed. Reads only.
"""

from sqlalchemy import Connection

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control.runs import run_row
from services.treestore.training.replay import buffer, pool
from services.treestore.training.replay.draw import Draw, settings_of


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
    draw = Draw(
        request.policy,
        settings_of(request.settings_json),
        count=request.count,
        seed=request.seed,
        batch=request.before_batch,
    )
    drawn = draw.of(buffer.stored(connection, request))
    trees = buffer.trees_of(connection, request.run_id, drawn)
    for group_id in drawn:
        for row in trees[group_id]:
            response.trees.add(tree_id=row.tree_id, group_id=group_id)
