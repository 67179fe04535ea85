"""What became of training groups, batch by batch: the rewards and lengths of their leaves, read by index.

Only batches say what counts: what they took and gave up never changes again, so a reader asks for each batch once.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, select

from banyan import order, reward
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import chunks, rows_in
from services.treestore.unit_of_work.rows import ANSWER, CONSUMED, DROPPED, SCORED

_GROUPS = 1000  # in one answer, but for the last batch in it: some 10,000 leaves
_SOLVED = 256  # answers in it, and groups where they are wanted: they are long
_CHARS = 4096  # of each

# Made once: building a statement costs as much as running it.
_TREES: BindParameter[Any] = bindparam("keys", expanding=True)
_ENDS = (
    select(
        *(schema.leaves.c[name] for name in ("tree_id", "segment", "end")), schema.segments.c.kind
    )
    .add_columns(schema.segments.c.prefix_sampled)
    .join(schema.segments, schema.segments.c.id == schema.leaves.c.segment)
    .where(schema.leaves.c.tree_id.in_(_TREES), schema.leaves.c.listed)
)
_VALUES = select(
    *(schema.scores.c[name] for name in ("tree_id", "segment", "end", "scorer", "state", "value"))
).where(schema.scores.c.tree_id.in_(_TREES))
_PLACES = select(*(schema.segments.c[name] for name in ("id", "parent", "fork", "ordinal"))).where(
    schema.segments.c.tree_id.in_(_TREES)
)
_ANSWERS = select(
    *(schema.leaves.c[name] for name in ("tree_id", "segment", "end")),
    func.substr(schema.leaves.c.completion, 1, bindparam("chars")).label("answer"),
).where(
    schema.leaves.c.tree_id.in_(_TREES),
    schema.leaves.c.segment.in_(bindparam("segments", expanding=True)),
)


@dataclass(frozen=True, slots=True)
class ScoredLeaf:
    """A listed leaf with its reward, None where it has none."""

    length: int
    reward: float | None


def read(connection: Connection, request: rs.ReadOutcomesRequest) -> rs.ReadOutcomesResponse:
    """The outcomes of whole batches, from the first asked for on."""
    response = rs.ReadOutcomesResponse(next_batch=request.first_batch)
    outcomes: dict[str, rs.GroupOutcome] = {}
    for batch in connection.execute(_batches(request)):
        outcomes |= {
            group: rs.GroupOutcome(batch=batch.ordinal) for group in json.loads(batch.group_ids)
        }
        given_up = json.loads(batch.dropped)
        outcomes |= {
            group: rs.GroupOutcome(batch=batch.ordinal, given_up=reason)
            for group, reason in given_up
        }
        response.next_batch = batch.ordinal + 1
        if len(outcomes) >= (_SOLVED if request.solved_chars else _GROUPS):
            break
    solved = _fill(connection, request, outcomes)
    if request.solved_chars:
        _answer(connection, request.solved_chars, solved, outcomes)
    response.groups.extend(sorted(outcomes.values(), key=lambda o: (o.batch, o.ordinal)))
    return response


def _batches(request: rs.ReadOutcomesRequest) -> Any:
    table = schema.batches
    asked = table.c.ordinal.between(request.first_batch, request.before_batch - 1)
    return (
        select(table.c.ordinal, table.c.group_ids, table.c.dropped)
        .where(table.c.run_id == request.run_id, asked)
        .order_by(table.c.ordinal)
        .limit(_GROUPS)
    )


def _fill(
    connection: Connection, request: rs.ReadOutcomesRequest, outcomes: dict[str, rs.GroupOutcome]
) -> dict[tuple[bytes, bytes, int], str]:
    """Ordinals, rewards and lengths: leaves in the order of their trees and places. The first leaf to solve each group."""
    for row in rows_in(connection, schema.groups, "group_id", outcomes, run_id=request.run_id):
        outcomes[row.group_id].ordinal = row.ordinal
    found = _trees(connection, request.run_id, outcomes)
    trees = {tree.tree_id: tree for tree in found if _counts(tree, outcomes[tree.group_id])}
    held, solved = leaves(connection, trees), dict[str, tuple[bytes, bytes, int]]()
    for tree in sorted(trees.values(), key=lambda t: (t.group_id, t.tree_index)):
        for place, leaf in held[tree.tree_id].items():
            if leaf.reward is not None:
                outcomes[tree.group_id].rewards.append(leaf.reward)
                outcomes[tree.group_id].lengths.append(leaf.length)
                if leaf.reward >= request.right:
                    solved.setdefault(tree.group_id, (tree.tree_id, *place))
    return {leaf: group for group, leaf in solved.items()}


def _answer(
    connection: Connection,
    chars: int,
    solved: Mapping[tuple[bytes, bytes, int], str],
    outcomes: Mapping[str, rs.GroupOutcome],
) -> None:
    """The answers of one leaf a group, of the newest groups, cut by the database."""
    newest = sorted(solved, key=lambda leaf: outcomes[solved[leaf]].ordinal)[-_SOLVED:]
    keys = {
        "keys": [tree for tree, _, _ in newest],
        "segments": [segment for _, segment, _ in newest],
    }
    for row in (
        connection.execute(_ANSWERS, {**keys, "chars": min(chars, _CHARS)}) if newest else ()
    ):
        group = solved.get((row.tree_id, row.segment, row.end))
        if group is not None:
            outcomes[group].solved = row.answer


def _trees(connection: Connection, run_id: str, groups: Iterable[str]) -> Iterator[Any]:
    table = schema.trees
    columns = (
        table.c.tree_id,
        table.c.group_id,
        table.c.tree_index,
        table.c.state,
        table.c.reason,
        table.c.scorers,
    )
    for chunk in chunks(sorted(groups)):
        yield from connection.execute(
            select(*columns).where(table.c.run_id == run_id, table.c.group_id.in_(chunk))
        )


def _counts(tree: Row[Any], outcome: rs.GroupOutcome) -> bool:
    """Trees that were given up before their group was tell nothing of its row."""
    if tree.state == DROPPED:
        return bool(outcome.given_up and tree.reason == outcome.given_up)
    return bool(tree.state == CONSUMED)


def leaves(
    connection: Connection, trees: Mapping[bytes, Row[Any]]
) -> dict[bytes, dict[tuple[bytes, int], ScoredLeaf]]:
    """The listed leaves of trees by place, as a depth-first walk meets them; of each tree its columns `tree_id` and
    `scorers` are needed."""
    found: dict[bytes, dict[tuple[bytes, int], ScoredLeaf]] = {tree_id: {} for tree_id in trees}
    wanted = {tree_id: json.loads(tree.scorers) for tree_id, tree in trees.items()}
    for chunk in chunks(sorted(trees)):
        paths = order.paths(connection.execute(_PLACES, {"keys": chunk}).all())
        rewards = _rewards(connection.execute(_VALUES, {"keys": chunk}), wanted)
        ends = connection.execute(_ENDS, {"keys": chunk}).all()
        for row in sorted(ends, key=lambda row: order.at(paths, row.segment, row.end)):
            length = row.prefix_sampled + (row.end if row.kind in ANSWER else 0)
            place = row.segment, row.end
            found[row.tree_id][place] = ScoredLeaf(length, rewards[row.tree_id].get(place))
    return found


def _rewards(
    rows: Iterable[Row[Any]], wanted: Mapping[bytes, list[str]]
) -> dict[bytes, dict[tuple[bytes, int], float | None]]:
    """The reward of each place of each tree that all of its scorers have spoken of."""
    said: dict[bytes, list[tuple[tuple[bytes, int], str, float | None]]] = {
        tree_id: [] for tree_id in wanted
    }
    for row in rows:
        if row.scorer in wanted[row.tree_id]:
            value = row.value if row.state == SCORED else None
            said[row.tree_id].append(((row.segment, row.end), row.scorer, value))
    return {
        tree_id: reward.rewards(scores, len(wanted[tree_id])) for tree_id, scores in said.items()
    }
