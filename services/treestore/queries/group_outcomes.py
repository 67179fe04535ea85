"""Outcomes of training groups, batch by batch: the rewards and lengths of their leaves, read by
index.

Only batches decide which groups count. The groups of a batch never change, so a reader asks for
each batch once.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, Select, bindparam, func, select

from banyan import order, reward
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire.weights import by_name
from services.treestore.storage import mapping, schema
from services.treestore.storage.mapping import weights_from_text
from services.treestore.storage.sql import chunks, rows_in
from services.treestore.unit_of_work.rows import ANSWER, CONSUMED, SCORED

_MAX_GROUPS = 1000  # in one answer, but for its last batch: some 10,000 leaves
_MAX_SOLVED = 256  # answers in it, and groups where answers are wanted, as these are long
_MAX_CHARACTERS = 4096  # of each answer
Place = tuple[bytes, int]  # segment and end
# Made once: building a statement costs as much as running it.
_TREES: BindParameter[Any] = bindparam("keys", expanding=True)
_L, _S, _G = schema.leaves.c, schema.scores.c, schema.segments.c
_ENDS = (
    select(_L.tree_id, _L.segment, _L.end, _G.kind, _G.prefix_sampled)
    .join(schema.segments, _G.id == _L.segment)
    .where(_L.tree_id.in_(_TREES), _L.listed)
)
_VALUES = select(_S.tree_id, _S.segment, _S.end, _S.scorer, _S.state, _S.value).where(
    _S.tree_id.in_(_TREES)
)
_PLACES = select(*(_G[name] for name in mapping.PLACE_COLUMNS)).where(_G.tree_id.in_(_TREES))
_ANSWERS = select(
    _L.tree_id,
    _L.segment,
    _L.end,
    func.substr(_L.completion, 1, bindparam("chars")).label("answer"),
).where(_L.tree_id.in_(_TREES), _L.segment.in_(bindparam("segments", expanding=True)))


@dataclass(frozen=True, slots=True)
class RewardedLeaf:
    """A listed leaf.

    length: tokens of the answer
    reward: its reward; None if it has none
    """

    length: int
    reward: float | None


@dataclass(frozen=True, slots=True)
class _Scorers:
    """The scorers of a tree, with their weights in its rewards."""

    names: Sequence[str]
    weights: reward.Weights


@dataclass(frozen=True, slots=True)
class _SolvedLeaf:
    """The first right leaf of a group."""

    tree_id: bytes
    place: Place


def read(connection: Connection, request: rs.ReadOutcomesRequest) -> rs.ReadOutcomesResponse:
    """Return the outcomes of whole batches, starting with `first_batch`."""
    response = rs.ReadOutcomesResponse(next_batch=request.first_batch)
    outcomes: dict[str, rs.GroupOutcome] = {}
    for batch in connection.execute(_batches(request)):
        for group_id in json.loads(batch.group_ids):
            outcomes[group_id] = rs.GroupOutcome(batch=batch.ordinal)
        response.next_batch = batch.ordinal + 1
        if len(outcomes) >= (_MAX_SOLVED if request.solved_chars else _MAX_GROUPS):
            break
    solved = _fill(connection, request, outcomes)
    if request.solved_chars:
        _add_answers(connection, request.solved_chars, solved, outcomes)
    by_place = sorted(outcomes.values(), key=lambda outcome: (outcome.batch, outcome.ordinal))
    response.groups.extend(by_place)
    return response


def _batches(request: rs.ReadOutcomesRequest) -> Select[Any]:
    table = schema.batches
    wanted = table.c.ordinal.between(request.first_batch, request.before_batch - 1)
    return (
        select(table.c.ordinal, table.c.group_ids)
        .where(table.c.run_id == request.run_id, wanted)
        .order_by(table.c.ordinal)
        .limit(_MAX_GROUPS)
    )


def _fill(
    connection: Connection, request: rs.ReadOutcomesRequest, outcomes: dict[str, rs.GroupOutcome]
) -> dict[str, _SolvedLeaf]:
    """Fill in ordinals, rewards and lengths, in the order of trees and places.

    Returns the first leaf of each group whose reward reaches `right`.
    """
    for row in rows_in(connection, schema.groups, "group_id", outcomes, run_id=request.run_id):
        outcomes[row.group_id].ordinal = row.ordinal
    trees = {tree.tree_id: tree for tree in _trees(connection, request.run_id, outcomes)}
    leaves_of, solved = leaves(connection, trees), dict[str, _SolvedLeaf]()
    for tree in sorted(trees.values(), key=lambda tree: (tree.group_id, tree.tree_index)):
        outcome = outcomes[tree.group_id]
        for place, leaf in leaves_of[tree.tree_id].items():
            if leaf.reward is None:
                continue
            outcome.rewards.append(leaf.reward)
            outcome.lengths.append(leaf.length)
            if leaf.reward >= request.right:
                solved.setdefault(tree.group_id, _SolvedLeaf(tree.tree_id, place))
    return solved


def _add_answers(
    connection: Connection,
    characters: int,
    solved: Mapping[str, _SolvedLeaf],
    outcomes: Mapping[str, rs.GroupOutcome],
) -> None:
    """Add the answer of one leaf a group, for the newest groups; the database cuts them."""
    newest = sorted(solved, key=lambda group: outcomes[group].ordinal)[-_MAX_SOLVED:]
    if not newest:
        return
    groups = {(solved[group].tree_id, solved[group].place): group for group in newest}
    query = {
        "keys": [solved[group].tree_id for group in newest],
        "segments": [solved[group].place[0] for group in newest],
        "chars": min(characters, _MAX_CHARACTERS),
    }
    for row in connection.execute(_ANSWERS, query):
        group_id = groups.get((row.tree_id, (row.segment, row.end)))
        if group_id is not None:
            outcomes[group_id].solved = row.answer


def _trees(connection: Connection, run_id: str, groups: Iterable[str]) -> Iterator[Any]:
    """Yield the consumed trees of groups; those dropped before tell nothing of the example."""
    trees = schema.trees.c
    columns = (trees.tree_id, trees.group_id, trees.tree_index, trees.scorers, trees.scorer_weights)
    for chunk in chunks(sorted(groups)):
        yield from connection.execute(
            select(*columns).where(
                trees.run_id == run_id, trees.group_id.in_(chunk), trees.state == CONSUMED
            )
        )


def leaves(
    connection: Connection, trees: Mapping[bytes, Row[Any]]
) -> dict[bytes, dict[Place, RewardedLeaf]]:
    """Return the listed leaves of trees by place, in depth-first order.

    trees: rows by id, with the columns `tree_id`, `scorers` and `scorer_weights`
    """
    leaves_of: dict[bytes, dict[Place, RewardedLeaf]] = {tree_id: {} for tree_id in trees}
    scorers = {tree_id: _scorers(tree) for tree_id, tree in trees.items()}
    for chunk in chunks(sorted(trees)):
        paths = order.paths(connection.execute(_PLACES, {"keys": chunk}).all())
        rewards = _rewards(connection.execute(_VALUES, {"keys": chunk}), scorers)
        ends = connection.execute(_ENDS, {"keys": chunk}).all()
        for row in sorted(ends, key=lambda row: order.at(paths, row.segment, row.end)):
            length = row.prefix_sampled + (row.end if row.kind in ANSWER else 0)
            place = row.segment, row.end
            leaf = RewardedLeaf(length, rewards[row.tree_id].get(place))
            leaves_of[row.tree_id][place] = leaf
    return leaves_of


def _rewards(
    rows: Iterable[Row[Any]], scorers: Mapping[bytes, _Scorers]
) -> dict[bytes, dict[Place, float | None]]:
    """Return the reward of each place that all scorers of its tree have scored."""
    values: dict[bytes, list[tuple[Place, str, float | None]]] = {
        tree_id: [] for tree_id in scorers
    }
    for row in rows:
        if row.scorer in scorers[row.tree_id].names:
            value = row.value if row.state == SCORED else None
            values[row.tree_id].append(((row.segment, row.end), row.scorer, value))
    return {
        tree_id: reward.rewards(scores, len(scorers[tree_id].names), scorers[tree_id].weights)
        for tree_id, scores in values.items()
    }


def _scorers(tree: Row[Any]) -> _Scorers:
    names = json.loads(tree.scorers)
    return _Scorers(names, by_name(names, weights_from_text(tree.scorer_weights)))
