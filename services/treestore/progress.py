"""How far a run is: what the curriculum decides on. Reads sums that every transaction keeps, so its cost does not grow."""

from sqlalchemy import Connection, func, select

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore import schema
from services.treestore.rows import GROWING, TallyRow
from services.treestore.runs import run_row


def read(connection: Connection, run_id: str, now_ms: int) -> rs.ReadProgressResponse:
    """Progress of a run."""
    run = run_row(connection, run_id)
    table, trees = schema.tallies, schema.trees
    rows = connection.execute(select(table).where(table.c.run_id == run.run_id).order_by(table.c.label))
    tallies = {row.label: TallyRow(**row._asdict()) for row in rows}
    train = tallies.pop("", TallyRow(run.run_id, ""))
    response = rs.ReadProgressResponse(batches=run.batches, groups=_groups(train), samples=_samples(train))
    if run.step >= 0:
        response.step = run.step
    response.evals.extend(_evaluation(tally) for tally in tallies.values())
    claimed = (trees.c.run_id == run.run_id) & (trees.c.state == GROWING) & (trees.c.claim_due_ms > now_ms)
    response.growing_nodes = connection.scalar(select(func.count(trees.c.claim_node.distinct())).where(claimed)) or 0
    return response


def _groups(tally: TallyRow) -> rs.GroupCounts:
    return rs.GroupCounts(
        opened=tally.prefix, open=tally.open, closed=tally.closed, consumed=tally.consumed, dropped=tally.dropped
    )


def _samples(tally: TallyRow) -> rs.SampleCounts:
    return rs.SampleCounts(
        sampled_tokens=tally.sampled_tokens,
        path_tokens=tally.path_tokens,
        prompt_tokens=tally.prompt_tokens,
        prompt_path_tokens=tally.prompt_path_tokens,
        leaves=tally.leaves,
        scored=tally.scored,
        unscorable=tally.unscorable,
        reward_sum=tally.reward_sum,
    )


def _evaluation(tally: TallyRow) -> rs.EvalProgress:
    return rs.EvalProgress(
        label=tally.label,
        groups=tally.prefix,
        done=tally.closed + tally.dropped,
        scored=tally.scored,
        unscorable=tally.unscorable,
        reward_sum=tally.reward_sum,
        correct=tally.correct,
    )
