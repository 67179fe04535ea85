"""Plain groups as trees of a store: their segments with receipts, leaves, endings and scores."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.endings import Ending
from banyan.environments.observation import Effect
from banyan.environments.receipts import Receipt
from banyan.plugins import Scored
from banyan.reasons import Reason
from banyan.segment import Finish, Kind, Origin, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.endings import to_wire
from banyan.wire.segments import leaf_to_wire
from services.treestore.ingest.item import Item
from services.treestore.queries import transcripts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from tests.banyan.environments.test_observation import SEEN
from tests.learner.credit import plain_groups as plain
from tests.learner.credit.plain_groups import End, Piece, PlainTree
from tests.treestore.forge import World

SCORING = Scoring(Pool(Limits()))
FINISHES = {
    plain.DONE: Finish.STOP,
    plain.FULL: Finish.LENGTH,
    "length": Finish.LENGTH,
    "called": Finish.TOOL_CALL,
    "cut": Finish.ABORTED,
}


def store(world: World, spec: tree_pb2.TreeSpec, tree: PlainTree) -> dict[int, Segment]:
    """Let the store have a tree's whole life; return the segment of each piece."""
    forge, epoch = world.forge, world.open(spec)
    root = forge.root(spec)
    made: dict[int, Segment] = {}
    for piece in tree.pieces:
        above = root if piece.above is None else made[id(piece.above)]
        made[id(piece)] = _segment(world, piece, above)
    places = [Leaf(made[id(leaf.piece)].id, leaf.end) for leaf in tree.leaves]
    inside = {Leaf(made[id(piece)].id, end): value for (piece, end), value in tree.inside.items()}
    grown = events_pb2.TreeGrown(
        run_id=forge.run_id,
        tree_id=spec.tree_id,
        claim_epoch=epoch,
        leaves=[leaf_to_wire(place) for place in places],
        inside=[leaf_to_wire(place) for place in inside],
        node_id="node-1",
    )
    world.ingest(
        forge.segments(root, *made.values(), epoch=epoch),
        *(_leaf(world, leaf, made[id(leaf.piece)], epoch) for leaf in tree.leaves),
        forge.item("grown", events_pb2.TreesGrown(trees=[grown])),
    )
    for place, value in inside.items():
        world.ingest(_own(world, spec.tree_id, place, value))
    for leaf, place in zip(tree.leaves, places, strict=True):
        if leaf.why != plain.UNANSWERED:
            world.ingest(_scores(world, spec.tree_id, leaf, place, epoch))
    return made


def _segment(world: World, piece: Piece, above: Segment) -> Segment:
    length = len(above) if piece.above is None else piece.fork
    siblings = [] if piece.above is None else piece.above.below
    before = [one for one in siblings[: _index(siblings, piece)] if one.fork == piece.fork]
    ordinal = len(before)
    if piece.above is None:
        ordinal = piece.tokens[0]  # any number that no other first piece has
    common: dict[str, Any] = {"tokens_T": np.array(piece.tokens, np.int32)}
    if piece.kind == plain.TOOL:
        return _answer(world, piece, above, common)
    if piece.kind == plain.FORCED:
        common |= {"kind": Kind.FORCED, "origin": Origin.BRANCH, "finish": Finish.BOUNDARY}
    else:
        common |= {"finish": FINISHES.get(piece.end, Finish.STOP)}
    return world.forge.child(above, ordinal, len(piece.tokens), length, **common)


def _index(pieces: Sequence[Piece], wanted: Piece) -> int:
    return next((i for i, piece in enumerate(pieces) if piece is wanted), 0)


def _answer(world: World, piece: Piece, action: Segment, common: dict[str, Any]) -> Segment:
    text = " ".join(map(str, piece.tokens))
    seen = replace(
        SEEN,
        action=action.id,
        answer=blake(text.encode()),
        shown=blake(text.encode()),
        after=blake(action.id),
        effect=Effect.STATE,
        reward=piece.reward,
        done=piece.end == plain.DONE,
        anchor=piece.anchor,
    )
    mac = receipts.mac(world.settings.receipt_key, world.forge.run_id, action.tree_id, seen)
    more: dict[str, Any] = {
        "kind": Kind.TOOL,
        "logprobs_T": [],
        "policy": b"",
        "finish": FINISHES.get(piece.end, Finish.BOUNDARY),
        "receipt": Receipt(seen, mac),
        "text": text,
    }
    return world.forge.child(action, 0, len(piece.tokens), **common, **more)


def _leaf(world: World, leaf: End, segment: Segment, epoch: int) -> Item:
    item = world.forge.leaf(segment, leaf.end, epoch, completion="text")
    if leaf.why != plain.UNANSWERED:
        return item
    message = events_pb2.LeavesFinished.FromString(item.data)
    reason = Reason.ENVIRONMENT_DIVERGED
    key = world.settings.receipt_key
    ending = Ending.said(
        key, world.forge.run_id, segment.tree_id, place=segment.id, reason=reason, cause=""
    )
    message.leaves[0].ending.CopyFrom(to_wire(ending))
    return world.forge.item("leaf", message)


def _own(world: World, tree_id: bytes, place: Leaf, value: float | None) -> Item:
    score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason="EXCEPTION")
    if value is not None:
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
    scored = tree_pb2.ScoredLeaf(
        leaf=leaf_to_wire(place), scorer="other", scorer_version="1", score=score
    )
    event = events_pb2.LeafScored(run_id=world.forge.run_id, tree_id=tree_id, scored=scored)
    return world.forge.item("score", events_pb2.LeavesScored(scores=[event]))


def _scores(world: World, tree_id: bytes, leaf: End, place: Leaf, epoch: int) -> Item:
    """Return what the verifier says of a leaf, of its transcript in the store."""
    key = ts.LeafKey(tree_id=tree_id, leaf=leaf_to_wire(place), claim_epoch=epoch)
    (told,) = world.database.query(lambda c: transcripts.read(c, [key]))
    events = []
    for name in told.scorers:
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=leaf.other)
        if name == "environment":
            spec = ScorerSpec(name, {})
            found = asyncio.run(SCORING.score(spec, told.completion, {}, turns=told.turns))
            assert isinstance(found.outcome, Scored)
            score.value = found.outcome.value
        elif leaf.why == plain.UNSCORED:
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason="EXCEPTION")
        scored = tree_pb2.ScoredLeaf(leaf=key.leaf, scorer=name, scorer_version="1", score=score)
        events.append(
            events_pb2.LeafScored(run_id=world.forge.run_id, tree_id=tree_id, scored=scored)
        )
    return world.forge.item("score", events_pb2.LeavesScored(scores=events))
