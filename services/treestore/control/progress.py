"""Progress of a run, on which the curriculum decides: sums that every transaction keeps, so the
cost does not grow.
"""

from sqlalchemy import Connection, bindparam, func, select

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import learner_failures
from services.treestore.control.runs import run_row
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import GROWING, TallyRow

# Made once: the gateway asks after each event.
_TALLIES = (
    select(schema.tallies)
    .where(schema.tallies.c.run_id == bindparam("run"))
    .order_by(schema.tallies.c.label)
)
_TREES = schema.trees.c
_NODES = select(func.count(_TREES.claim_node.distinct())).where(
    _TREES.run_id == bindparam("run"),
    _TREES.state == GROWING,
    _TREES.claim_due_ms > bindparam("now"),
)


def read(connection: Connection, run_id: str, now_ms: int) -> rs.ReadProgressResponse:
    """Return the progress of a run. Raises NotFound."""
    run = run_row(connection, run_id)
    rows = connection.execute(_TALLIES, {"run": run.run_id})
    tallies = {row.label: TallyRow(**row._asdict()) for row in rows}
    train = tallies.pop("", TallyRow(run.run_id, ""))
    response = rs.ReadProgressResponse(
        batches=run.batches, groups=_groups(train), samples=_samples(train)
    )
    if run.step >= 0:
        response.step = run.step
    response.evals.extend(_evaluation(tally) for tally in tallies.values())
    response.growing_nodes = connection.scalar(_NODES, {"run": run.run_id, "now": now_ms}) or 0
    response.set_aside.extend(learner_failures.set_aside(connection, run.run_id))
    return response


def _groups(tally: TallyRow) -> rs.GroupCounts:
    return rs.GroupCounts(
        opened=tally.prefix,
        open=tally.open,
        closed=tally.closed,
        consumed=tally.consumed,
        dropped=tally.dropped,
    )


def _samples(tally: TallyRow) -> rs.SampleCounts:
    return rs.SampleCounts(
        sampled_tokens=tally.sampled_tokens,
        path_tokens=tally.path_tokens,
        prompt_tokens=tally.prompt_tokens,
        prompt_path_tokens=tally.prompt_path_tokens,
        unique_tokens=tally.unique_tokens,
        used_tokens=tally.used_tokens,
        leaves=tally.leaves,
        scored=tally.scored,
        unscorable=tally.unscorable,
        reward_sum=tally.reward_sum,
    )


def _evaluation(tally: TallyRow) -> rs.EvalProgress:
    votes = rs.Votes(
        rows=tally.votes,
        value_sum=tally.vote_sum,
        correct=tally.vote_correct,
        leaf_value_sum=tally.vote_leaf_sum,
        leaf_correct_sum=tally.vote_leaf_correct,
    )
    head_votes = rs.Votes(
        rows=tally.head_votes,
        value_sum=tally.head_vote_sum,
        correct=tally.head_vote_correct,
        leaf_value_sum=tally.head_vote_leaf_sum,
        leaf_correct_sum=tally.head_vote_leaf_correct,
    )
    return rs.EvalProgress(
        label=tally.label,
        groups=tally.prefix,
        done=tally.closed + tally.dropped,
        scored=tally.scored,
        unscorable=tally.unscorable,
        reward_sum=tally.reward_sum,
        correct=tally.correct,
        votes=votes if votes.rows else None,
        head_votes=head_votes if head_votes.rows else None,
    )
