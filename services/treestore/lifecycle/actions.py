"""The ways to actions: what was done and answered on their paths, for the environment.

An answer behind an action is awaited by its path, so many ways are read together: a few statements
for all, however many there are.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, Row, bindparam, literal, select

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.segment import Finish, Kind
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims, effects
from services.treestore.storage import schema
from services.treestore.storage.tokens import path_tokens, tokenizers

MAX_ACTIONS = 64  # in one request
_MAX_BYTES = 1 << 20  # of an answer, beyond its first way
_SEGMENTS, _TREES = schema.segments.c, schema.trees.c
_ACTIONS: BindParameter[Any] = bindparam("actions", expanding=True)
_IDS: BindParameter[Any] = bindparam("trees", expanding=True)
_STORED = select(_SEGMENTS.id, _SEGMENTS.tree_id, _SEGMENTS.finish, _SEGMENTS.length).where(
    _SEGMENTS.id.in_(_ACTIONS)
)
_RUNS = select(schema.runs.c.run_id, schema.runs.c.tokenizer).where(
    schema.runs.c.run_id.in_(_IDS), schema.runs.c.joined
)
_TREE = select(_TREES.tree_id, _TREES.run_id, _TREES.spec, _TREES.traceparent).where(
    _TREES.tree_id.in_(_IDS)
)
_BEGAN = select(_SEGMENTS.tree_id, _SEGMENTS.stored_ms).where(
    _SEGMENTS.tree_id.in_(_IDS), _SEGMENTS.parent == b""
)
_ANSWER = select(_SEGMENTS.parent, _SEGMENTS.receipt, _SEGMENTS.text).where(
    _SEGMENTS.tree_id.in_(_IDS),
    _SEGMENTS.parent.in_(_ACTIONS),
    _SEGMENTS.kind == int(Kind.TOOL),
)
_PATH = (
    select(
        _SEGMENTS.id.label("action"),
        _SEGMENTS.id,
        _SEGMENTS.parent,
        _SEGMENTS.kind,
        literal(0).label("above"),
    )
    .where(_SEGMENTS.id.in_(_ACTIONS))
    .cte("path", recursive=True)
)
_PATH = _PATH.union_all(
    select(_PATH.c.action, _SEGMENTS.id, _SEGMENTS.parent, _SEGMENTS.kind, _PATH.c.above + 1).where(
        _SEGMENTS.id == _PATH.c.parent
    )
)
# Of each segment on the path the place alone, and of answers the receipt: a tree is large.
_ANSWERS_ABOVE = (
    select(_PATH.c.action, _SEGMENTS.parent, _SEGMENTS.receipt)
    .join(_PATH, _SEGMENTS.id == _PATH.c.id)
    .where(_PATH.c.kind == int(Kind.TOOL))
    .order_by(_PATH.c.above.desc())
)


def read(
    connection: Connection, request: ts.ReadActionsRequest, now_ms: int, run_id: str = ""
) -> ts.ReadActionsResponse:
    """Return the ways to actions, each with its own outcome: a way without a run if it is not
    stored, the reason if the claim is not in force, or the segment ends no action.

    now_ms: time on the store's clock
    run_id: run that all must belong to, unless it is empty

    Raises InvalidInput for more than MAX_ACTIONS.
    """
    keys = request.actions
    if len(keys) > MAX_ACTIONS:
        raise InvalidInput(f"{len(keys)} actions at once; at most {MAX_ACTIONS} are taken")
    claimed = [_Claim(key.tree_id, key.epoch, key.run_id or run_id, key.node_id) for key in keys]
    refusals = {claim: _refusal(connection, claim) for claim in set(claimed)}
    asked = {
        key.action for key, claim in zip(keys, claimed, strict=True) if refusals[claim] is None
    }
    ways = _ways(connection, asked, now_ms)
    response, size = ts.ReadActionsResponse(), 0
    for key, claim in zip(keys, claimed, strict=True):
        outcome = response.outcomes.add()
        way = refusals[claim] or ways.get((key.tree_id, key.action), ts.ActionWay())
        if not isinstance(way, ts.ActionWay):
            outcome.refused, outcome.detail = way.reason, str(way)
            continue
        size += way.ByteSize()
        if size > _MAX_BYTES and size > way.ByteSize():
            outcome.refused = Reason.LATER
        else:
            outcome.way.CopyFrom(way)
    return response


def has_news(response: ts.ReadActionsResponse) -> bool:
    """Return whether any of the actions is stored, or was refused."""
    return any(outcome.refused or is_there(outcome.way) for outcome in response.outcomes)


def is_there(way: ts.ActionWay) -> bool:
    """Return whether the action is stored."""
    return bool(way.run_id)


class _Claim(NamedTuple):
    """A claim, and the joined node that says it is its own."""

    tree_id: bytes
    epoch: int
    run_id: str
    node_id: str


def _refusal(connection: Connection, claim: _Claim) -> NotFound | Refused | None:
    try:
        if claim.run_id:
            claims.check_run(connection, claim.tree_id, claim.run_id)
        if claim.node_id:
            claims.check_holder(connection, claim.tree_id, claim.node_id)
        claims.check_in_force(connection, claim.tree_id, claim.epoch)
    except (NotFound, Refused) as error:
        return error
    return None


def _ways(
    connection: Connection, asked: Collection[bytes], now_ms: int
) -> dict[tuple[bytes, bytes], ts.ActionWay | Refused]:
    """Return the ways to the actions that are stored, by tree and action."""
    rows = list(connection.execute(_STORED, {"actions": list(asked)})) if asked else []
    ways: dict[tuple[bytes, bytes], ts.ActionWay | Refused] = {
        (row.tree_id, row.id): _no_action(row.tree_id, row.id)
        for row in rows
        if row.finish != Finish.TOOL_CALL
    }
    stored = {row.id: row.tree_id for row in rows if row.finish == Finish.TOOL_CALL}
    if not stored:
        return ways
    actions = {"actions": list(stored)}
    trees = {"trees": list(set(stored.values()))}
    specs = {row.tree_id: row for row in connection.execute(_TREE, trees)}
    began = {row.tree_id: row.stored_ms for row in connection.execute(_BEGAN, trees)}
    above = _grouped(connection.execute(_ANSWERS_ABOVE, actions))
    answers = {row.parent: row for row in connection.execute(_ANSWER, {**actions, **trees})}
    runs = {action: specs[tree_id].run_id for action, tree_id in stored.items()}
    calls = _calls(connection, {row.id: row.length for row in rows}, runs)
    begun = effects.turns(connection, stored)
    for action, tree_id in stored.items():
        tree = specs[tree_id]
        spec = tree_pb2.TreeSpec.FromString(tree.spec)
        last = answers.get(action)
        ways[tree_id, action] = ts.ActionWay(
            run_id=tree.run_id,
            row_json=spec.row_json,
            generate_json=spec.generate_json,
            seed=spec.seed,
            turns=[
                *(_turn(row.parent, row.receipt) for row in above[action]),
                _turn(action, last.receipt, last.text)
                if last
                else begun.get(action, ts.Turn(action=action)),
            ],
            episode_ms=max(0, now_ms - began.get(tree_id, now_ms)),
            call=calls.get(action),
            effect_begun=action in begun,
            traceparent=tree.traceparent,
        )
    return ways


def _no_action(tree_id: bytes, segment: bytes) -> Refused:
    return Refused(
        f"segment {segment.hex()[:12]} of tree {tree_id.hex()[:12]} ends no action; only an action"
        " has an answer"
    )


def _calls(
    connection: Connection, lengths: Mapping[bytes, int], runs: Mapping[bytes, str]
) -> dict[bytes, str]:
    """Return the texts of actions, decoded from their tokens, of runs that a node joined.

    lengths: tokens of each action's last segment
    runs: run of each action
    """
    joined = {
        row.run_id: row.tokenizer
        for row in connection.execute(_RUNS, {"trees": list(set(runs.values()))})
        if row.tokenizer
    }
    wanted = {action for action, run_id in runs.items() if run_id in joined}
    segments = path_tokens.of_paths(connection, wanted)
    calls = {}
    for action in wanted:
        decoder = tokenizers.decoder(connection, joined[runs[action]])
        _, said_T = path_tokens.split(segments, action, lengths[action])
        calls[action] = decoder.decode(said_T)
    return calls


def _grouped(rows: Iterable[Row[Any]]) -> Mapping[bytes, Sequence[Row[Any]]]:
    by_action = defaultdict[bytes, list[Row[Any]]](list)
    for row in rows:
        by_action[row.action].append(row)
    return by_action


def _turn(action: bytes, receipt: bytes | None, text: str = "") -> ts.Turn:
    answered = tree_pb2.Receipt.FromString(receipt or b"")
    return ts.Turn(action=action, receipt=answered, answer=text)
