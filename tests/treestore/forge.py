"""A forge of messages of the log: runs, trees, segments, leaves and scores of small trees over a
known alphabet.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import select

from banyan import digest
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire.segments import leaf_to_wire, segment_to_wire
from services.treestore.control import runs
from services.treestore.ingest.item import Item
from services.treestore.ingest.outcome import Outcome
from services.treestore.ingest.transaction import ingest
from services.treestore.lifecycle import claims
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from services.treestore.training import policies

POLICY = digest.blake(b"policy 0")


class Clock:
    """A clock that a test sets."""

    def __init__(self, ms: int = 1_000_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


@dataclass
class Forge:
    """A maker of messages of one run; `sequence` numbers them as a stream would."""

    run_id: str = "quick-00000001"
    sequence: int = 0
    sequences: dict[bytes, int] = field(default_factory=dict)

    def item(self, kind: str, message: Any) -> Item:
        self.sequence += 1
        return Item(f"lineage.{self.run_id}.{kind}", message.SerializeToString(), self.sequence)

    def run(self, held_out: tuple[bytes, ...] = (), **more: Any) -> rs.Run:
        return rs.Run(
            run_id=self.run_id,
            recipe_json="{}",
            state=rs.RUN_STATE_TRAINING,
            held_out=held_out,
            **more,
        )

    def row(self, ordinal: int) -> dict[str, Any]:
        return {"question": f"{ordinal} + 1", "answer": ordinal + 1}

    def spec(
        self, ordinal: int = 0, index: int = 0, size: int = 1, label: str = "", **more: Any
    ) -> tree_pb2.TreeSpec:
        row = self.row(ordinal)
        group = f"{self.run_id}/{label or 'train'}/{ordinal}"
        row_digest = digest.row_digest(row)
        fields: dict[str, Any] = {
            "run_id": self.run_id,
            "tree_id": digest.tree_id(self.run_id, group, row_digest, index),
            "group_id": group,
            "group_ordinal": ordinal,
            "group_size": size,
            "index": index,
            "purpose": tree_pb2.TREE_PURPOSE_EVAL if label else tree_pb2.TREE_PURPOSE_TRAIN,
            "label": label,
            "row_digest": row_digest,
            "row_json": json.dumps(row),
            "messages_json": json.dumps([{"role": "user", "content": row["question"]}]),
            "scorers": ["number"],
            "generate_json": "{}",
            "max_claims": 3,
            "score_deadline_ms": 10_000,
        }
        return tree_pb2.TreeSpec(**{**fields, **more})

    def opened(self, spec: tree_pb2.TreeSpec, epoch: int = 1) -> Item:
        return self.all_opened([spec], epoch)

    def all_opened(self, specs: Sequence[tree_pb2.TreeSpec], epoch: int = 1) -> Item:
        trees = [events_pb2.TreeOpened(spec=spec, gateway_epoch=epoch) for spec in specs]
        return self.item("opened", events_pb2.TreesOpened(trees=trees))

    def root(self, spec: tree_pb2.TreeSpec) -> Segment:
        return Segment(
            spec.tree_id,
            b"",
            0,
            0,
            Kind.PROMPT,
            np.arange(3, dtype=np.int32),
            text="ask",
            finish=Finish.STOP,
        )

    def child(
        self,
        parent: Segment,
        ordinal: int = 0,
        length: int = 4,
        fork: int | None = None,
        **more: Any,
    ) -> Segment:
        fork = len(parent) if fork is None else fork
        tokens = np.arange(length, dtype=np.int32) + 10 * ordinal + fork
        fields: dict[str, Any] = {
            "kind": Kind.POLICY,
            "tokens_T": tokens,
            "logprobs_T": -np.ones(length, np.float32),
            "policy": POLICY,
            "sampling": Sampling(max_new_tokens=length),
            "finish": Finish.STOP,
            "text": f"<{ordinal}>",
            "producer": "node-1",
        }
        if more.get("kind") is Kind.TOOL:  # nobody samples it
            fields["sampling"] = Sampling()
        return Segment(parent.tree_id, parent.id, fork, ordinal, **{**fields, **more})

    def segments(self, *segments: Segment, epoch: int = 1) -> Item:
        grown = [
            events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=epoch) for s in segments
        ]
        return self.item(
            "segment",
            events_pb2.SegmentsGrown(run_id=self.run_id, node_id="node-1", segments=grown),
        )

    def leaf(
        self, segment: Segment, end: int | None = None, epoch: int = 1, completion: str = ""
    ) -> Item:
        leaf = Leaf(segment.id, len(segment) if end is None else end)
        message = events_pb2.LeafFinished(
            run_id=self.run_id,
            tree_id=segment.tree_id,
            claim_epoch=epoch,
            leaf=leaf_to_wire(leaf),
            reason="stop",
            completion=completion,
        )
        return self.item("leaf", events_pb2.LeavesFinished(leaves=[message]))

    def grown(self, tree_id: bytes, *segments: Segment, epoch: int = 1) -> Item:
        leaves = [leaf_to_wire(Leaf(s.id, len(s))) for s in segments]
        message = events_pb2.TreeGrown(
            run_id=self.run_id, tree_id=tree_id, claim_epoch=epoch, leaves=leaves, node_id="node-1"
        )
        return self.item("grown", events_pb2.TreesGrown(trees=[message]))

    def score(
        self,
        segment: Segment,
        value: float | None = 1.0,
        scorer: str = "number",
        reason: str = "EXCEPTION",
    ) -> Item:
        if value is None:
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason=reason)
        else:
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
        leaf = leaf_to_wire(Leaf(segment.id, len(segment)))
        scored = tree_pb2.ScoredLeaf(leaf=leaf, scorer=scorer, scorer_version="1", score=score)
        message = events_pb2.LeafScored(run_id=self.run_id, tree_id=segment.tree_id, scored=scored)
        return self.item("score", events_pb2.LeavesScored(scores=[message]))

    def life(
        self, spec: tree_pb2.TreeSpec, width: int = 2, value: float = 1.0, epoch: int = 1
    ) -> list[Item]:
        """Return all messages of a tree after its opening: a root, `width` branches, one of them
        continued, and their scores.
        """
        root = self.root(spec)
        branches = [self.child(root, ordinal) for ordinal in range(width)]
        branches[-1] = self.child(branches[-1], 0) if width > 1 else branches[-1]
        above = [self.child(root, width - 1)] if width > 1 else []
        return [
            self.segments(root, epoch=epoch),
            self.segments(*branches[: width - 1], *above, epoch=epoch)
            if width > 1
            else self.segments(branches[0], epoch=epoch),
            *([self.segments(branches[-1], epoch=epoch)] if width > 1 else []),
            *(self.leaf(branch, epoch=epoch) for branch in branches),
            self.grown(spec.tree_id, *branches, epoch=epoch),
            *(self.score(branch, value * ordinal) for ordinal, branch in enumerate(branches)),
        ]


@dataclass
class World:
    """A database with a run in it, driven without a bus."""

    database: Database
    forge: Forge = field(default_factory=Forge)
    settings: Settings = field(default_factory=Settings)
    now: Clock = field(default_factory=Clock)

    def start(self, held_out: tuple[bytes, ...] = ()) -> "World":
        """Take epoch 1 of gateway and learner, and store the run."""
        self.database.transact(runs.take_gateway_epoch)
        request = rs.PutRunRequest(
            run=self.forge.run(held_out), request_id="first", gateway_epoch=1
        )
        self.database.transact(lambda c: runs.put(c, request, self.now(), self.settings))
        epoch = rs.TakeLearnerEpochRequest(run_id=self.forge.run_id, learner_id="learner-1")
        self.database.transact(lambda c: policies.take_epoch(c, epoch))
        return self

    def ingest(self, *items: Item) -> Outcome:
        return self.database.transact(lambda c: ingest(c, items, self.now(), self.settings))

    def claim(self, tree_id: bytes, node: str = "node-1", ticket: int | None = None) -> int:
        """Claim a tree under its newest ticket, or under `ticket`."""
        if ticket is None:
            ticket = next((row.ticket for row in self.rows(schema.trees, tree_id=tree_id)), 0)
        return self.database.transact(
            lambda c: claims.claim(
                c,
                tree_id,
                node=node,
                ticket=ticket,
                now_ms=self.now(),
                settings=self.settings,
            )
        )

    def return_tree(self, tree_id: bytes, epoch: int, reason: str, *, joined: bool = False) -> None:
        """Return a claimed tree."""
        self.database.transact(
            lambda c: claims.return_tree(
                c,
                tree_id,
                epoch=epoch,
                reason=reason,
                now_ms=self.now(),
                settings=self.settings,
                joined=joined,
            )
        )

    def tickets(self) -> list[int]:
        """Return the tickets of the assignments in the outbox, in order."""
        rows = [row for row in self.rows(schema.outbox) if row.subject.startswith("growth.")]
        return [events_pb2.GrowTree.FromString(row.payload).ticket for row in rows]

    def silence(self) -> None:
        """Advance the clock until the broker would give a silent node's trees to another node."""
        self.now.ms += self.settings.claim_ms // 2

    def open(self, spec: tree_pb2.TreeSpec) -> int:
        """Open and claim a tree, and return its epoch."""
        self.ingest(self.forge.opened(spec))
        return self.claim(spec.tree_id)

    def live(self, spec: tree_pb2.TreeSpec, **more: Any) -> None:
        """Ingest a tree's whole life."""
        epoch = self.open(spec)
        self.ingest(*self.forge.life(spec, epoch=epoch, **more))

    def rows(self, table: Any, **where: Any) -> list[Any]:
        query = select(table).where(*(table.c[name] == value for name, value in where.items()))
        return self.database.query(lambda c: list(c.execute(query)))

    def one(self, table: Any, **where: Any) -> Any:
        rows = self.rows(table, **where)
        assert len(rows) == 1, f"{len(rows)} rows of {table.name} at {where}"
        return rows[0]
