"""What one transaction knows and will write: the rows it loaded, changed and made. The rules read it, `flush` writes it."""

import json
from collections import Counter
from dataclasses import dataclass, field

from google.protobuf.message import Message

from banyan.digest import blake
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.treestore.events.events import Event
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work import completion
from services.treestore.unit_of_work.rows import (
    GroupRow,
    GroupState,
    LeafRow,
    RunRow,
    ScoreRow,
    SegmentHeader,
    TallyRow,
    TreeParts,
    TreeRow,
)
from services.treestore.unit_of_work.segment_bounds import Asked, Limits

Values = dict[str, object]
_COLUMN = {
    GroupState.OPEN: "open",
    GroupState.CLOSED: "closed",
    GroupState.CONSUMED: "consumed",
    GroupState.DROPPED: "dropped",
}


@dataclass(slots=True)
class Waiting:
    """A parked event; `row` is its number, 0 before it is stored."""

    event: Event
    waits_for: bytes
    row: int = 0


@dataclass(slots=True)
class UnitOfWork:
    """Rows by key. `new_…` are rows to insert, in order; sets named `changed_…` hold keys of rows to update."""

    now_ms: int
    settings: Settings
    gateway_epoch: int = 0
    runs: dict[str, RunRow] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)  # by run
    asked: dict[bytes, Asked | None] = field(default_factory=dict)  # by tree, of runs with limits
    trees: dict[bytes, TreeRow] = field(default_factory=dict)
    members: dict[tuple[str, str], dict[int, TreeRow]] = field(
        default_factory=dict
    )  # the trees, by group and index
    states: dict[bytes, int] = field(default_factory=dict)  # of trees, as they are stored
    parts: dict[bytes, TreeParts] = field(default_factory=dict)
    heads: dict[bytes, SegmentHeader] = field(default_factory=dict)
    heads_of: dict[bytes, list[SegmentHeader]] = field(default_factory=dict)  # by tree
    places: dict[tuple[bytes, bytes, int, int], bytes] = field(default_factory=dict)
    lost: set[bytes] = field(default_factory=set)  # segments refused for good
    groups: dict[tuple[str, str], GroupRow] = field(default_factory=dict)
    groups_at: dict[tuple[str, str, int], GroupRow] = field(
        default_factory=dict
    )  # by run, label and ordinal
    tallies: dict[tuple[str, str], TallyRow] = field(default_factory=dict)
    parked: dict[bytes, list[Waiting]] = field(default_factory=dict)
    parked_digests: set[bytes] = field(default_factory=set)
    changed_trees: set[bytes] = field(default_factory=set)
    changed_groups: set[tuple[str, str]] = field(default_factory=set)
    changed_tallies: set[tuple[str, str]] = field(default_factory=set)
    changed_leaves: set[tuple[bytes, Leaf]] = field(default_factory=set)
    new_trees: list[Values] = field(default_factory=list)
    new_groups: set[tuple[str, str]] = field(default_factory=set)
    new_tallies: set[tuple[str, str]] = field(default_factory=set)
    new_segments: list[Values] = field(default_factory=list)
    new_leaves: set[tuple[bytes, Leaf]] = field(default_factory=set)
    new_scores: list[Values] = field(default_factory=list)
    new_plans: list[Values] = field(default_factory=list)
    new_refused: list[Values] = field(default_factory=list)
    new_late: list[Values] = field(default_factory=list)
    new_outbox: list[Values] = field(default_factory=list)
    new_dead: list[tuple[events_pb2.DeadLetter, Values]] = field(default_factory=list)
    released_rows: list[int] = field(default_factory=list)
    touched: set[bytes] = field(default_factory=set)  # trees that a waiter may wait for
    ended: list[TreeRow] = field(default_factory=list)  # trees closed or dropped
    closings: dict[str, list[events_pb2.TreeClosed]] = field(
        default_factory=dict
    )  # to be said, by run
    grew: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # trees that were grown, by run and node

    # -- reading --

    def part(self, tree_id: bytes) -> TreeParts:
        """Leaves and scores of a tree."""
        return self.parts.setdefault(tree_id, TreeParts())

    def tally(self, tree: TreeRow | GroupRow) -> TallyRow:
        """The sums that a tree or group counts in; they will be written."""
        key = (tree.run_id, tree.label)
        if key not in self.tallies:
            self.tallies[key] = TallyRow(*key)
            self.new_tallies.add(key)
        self.changed_tallies.add(key)
        return self.tallies[key]

    def group(self, tree: TreeRow) -> GroupRow:
        """The group of a tree."""
        return self.groups[(tree.run_id, tree.group_id)]

    def of_group(self, group: GroupRow) -> list[TreeRow]:
        """The loaded trees of a group."""
        return list(self.members.get((group.run_id, group.group_id), {}).values())

    def inside(self, tree_id: bytes) -> list[Leaf]:
        """The places inside a tree's paths that must be scored. Where any may be, the tree's heads are loaded."""
        leaves = self.part(tree_id).leaves
        if not completion.marked(leaves):
            return []
        above = {head.id: (head.parent, head.fork) for head in self.heads_of.get(tree_id, ())}
        return completion.inside(leaves, above)

    def owed(self, tree: TreeRow) -> list[tuple[Leaf, str]]:
        """The scores that a grown tree lacks."""
        part = self.part(tree.tree_id)
        return completion.owed(
            part.leaves, tree.scorers, part.scores, self.inside(tree.tree_id), part.groups
        )

    # -- changing --

    def change(self, tree: TreeRow) -> TreeRow:
        """Notes that a tree's row will be written."""
        self.changed_trees.add(tree.tree_id)
        self.touched.add(tree.tree_id)
        return tree

    def move_group(self, group: GroupRow, state: GroupState, reason: str = "") -> None:
        """Gives a group another state, and its tally with it."""
        tally = self.tally(group)
        old = _COLUMN[GroupState(group.state)]
        setattr(tally, old, getattr(tally, old) - 1)
        setattr(tally, _COLUMN[state], getattr(tally, _COLUMN[state]) + 1)
        group.state, group.reason = int(state), reason
        self.changed_groups.add((group.run_id, group.group_id))

    def add_tree(self, tree: TreeRow) -> None:
        """Makes a tree known to the rules."""
        self.trees[tree.tree_id] = tree
        self.members.setdefault((tree.run_id, tree.group_id), {})[tree.tree_index] = tree

    def add_group(self, group: GroupRow) -> None:
        """Makes a group known to the rules."""
        self.groups[(group.run_id, group.group_id)] = group
        self.groups_at[(group.run_id, group.label, group.ordinal)] = group

    def add_head(self, head: SegmentHeader) -> None:
        """Makes a segment known to the rules."""
        if head.id in self.heads:
            return
        self.heads[head.id] = head
        self.heads_of.setdefault(head.tree_id, []).append(head)
        self.places[(head.tree_id, head.parent, head.fork, head.ordinal)] = head.id

    def put_leaf(self, tree_id: bytes, leaf: Leaf) -> LeafRow:
        """The row of a leaf, made if it is not there; it will be written."""
        leaves = self.part(tree_id).leaves
        if leaf not in leaves:
            leaves[leaf] = LeafRow()
            self.new_leaves.add((tree_id, leaf))
        self.changed_leaves.add((tree_id, leaf))
        self.touched.add(tree_id)
        return leaves[leaf]

    def put_score(
        self, tree_id: bytes, leaf: Leaf, scorer: str, row: ScoreRow, **more: object
    ) -> None:
        """Adds a terminal score."""
        self.part(tree_id).scores[(leaf, scorer)] = row
        self.touched.add(tree_id)
        values: Values = {
            "tree_id": tree_id,
            "segment": leaf.segment,
            "end": leaf.end,
            "scorer": scorer,
            "scorer_version": row.version,
            "state": row.state,
            "value": row.value,
            "reason": row.reason,
            "parts": "{}",
            "repair": None,
            "verifier": "",
            "duration_ms": 0.0,
            "stored_ms": self.now_ms,
        }
        self.new_scores.append({**values, **more})

    # -- waiting --

    def park(self, event: Event, waits_for: bytes) -> None:
        """Keeps an event until `waits_for` is there; the same event is kept once."""
        self.wait(Waiting(event, waits_for))

    def wait(self, waiting: Waiting) -> None:
        """Adds a waiting event, unless it waits already."""
        digest = event_digest(waiting.event)
        if digest not in self.parked_digests:
            self.parked_digests.add(digest)
            self.parked.setdefault(waiting.waits_for, []).append(waiting)

    def waiting(self) -> list[Event]:
        """All events that wait."""
        return [w.event for waiting in self.parked.values() for w in waiting]

    def release(self, waits_for: bytes) -> list[Event]:
        """Takes out the events that waited."""
        waiting = self.parked.pop(waits_for, None)
        if not waiting:
            return []
        self.released_rows += [w.row for w in waiting if w.row]
        self.parked_digests -= {event_digest(w.event) for w in waiting}
        return [w.event for w in waiting]

    # -- telling --

    def held(self, event: Event, size: int, epoch: int = 0) -> Values:
        """Whose doing a kept row is: of the run, and of the node that has its tree. An event under another claim than the
        newest (`epoch`, 0 for none) is not that node's."""
        tree = self.trees.get(event.tree_id)
        node = tree.claim_node if tree and epoch in (0, tree.claim_epoch) else ""
        return {"run_id": event.run_id, "node": node, "bytes": size}

    def refuse(
        self,
        event: Event,
        epoch: int,
        reason: str,
        segment: bytes = b"",
        end: int = 0,
        winner: bytes = b"",
    ) -> None:
        """Keeps what a rule forbids, with the rule."""
        payload = event.payload()
        self.new_refused.append(
            {
                "digest": blake(event.kind.encode(), reason.encode(), payload),
                "tree_id": event.tree_id,
                "kind": event.kind,
                "segment": segment,
                "end": end,
                "epoch": epoch,
                "reason": reason,
                "winner": winner,
                "payload": payload,
                "stored_ms": self.now_ms,
                **self.held(event, len(payload), epoch),
            }
        )
        self.touched.add(event.tree_id)

    def add_late(self, event: Event, reason: str) -> None:
        """Keeps a score that came when there was one already."""
        payload = event.payload()
        values = {
            "digest": blake(payload),
            "tree_id": event.tree_id,
            "payload": payload,
            "reason": reason,
            "stored_ms": self.now_ms,
            **self.held(event, len(payload)),
        }
        self.new_late.append(values)

    def say(self, subject: str, msg_id: str, message: Message, traceparent: str = "") -> None:
        """An event that goes out if, and only if, this transaction is committed."""
        payload = message.SerializeToString()
        self.new_outbox.append(
            {"subject": subject, "msg_id": msg_id, "payload": payload, "traceparent": traceparent}
        )

    def say_closings(self) -> None:
        """All ends of trees of a run in few messages: whoever waits for them looks once."""
        for run_id, trees in self.closings.items():
            for start in range(0, len(trees), subjects.MOST_TREES):
                part = trees[start : start + subjects.MOST_TREES]
                name = blake(*sorted(tree.tree_id + bytes([tree.state]) for tree in part)).hex()
                self.say(
                    subjects.lineage(run_id, "closed"),
                    f"closed-{name}",
                    events_pb2.TreesClosed(trees=part),
                )
        self.closings = {}

    def bury(self, letter: events_pb2.DeadLetter, tree_id: bytes = b"") -> None:
        """Gives a message up; `tree_id`: the tree that it is about, if it is known."""
        tree = self.trees.get(tree_id)
        self.new_dead.append(
            (letter, dead_values(letter, self.now_ms, tree.claim_node if tree else ""))
        )

    def say_dead(self, letter: events_pb2.DeadLetter) -> None:
        """Says on the log that a message was given up."""
        name = blake(
            letter.service.encode(),
            str(letter.sequence).encode(),
            letter.subject.encode(),
            letter.payload,
        )
        self.say(subjects.dead(letter.stream), f"dead-{name.hex()}", letter)


def dead_values(letter: events_pb2.DeadLetter, now_ms: int, node: str = "") -> Values:
    """The row of a dead letter; `node` has the tree that it is about."""
    data = letter.SerializeToString()
    return {
        "service": letter.service,
        "stream": letter.stream,
        "sequence": letter.sequence,
        "letter": data,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "stored_ms": now_ms,
        "digest": blake(letter.subject.encode(), letter.payload),
        "run_id": subjects.run_of(letter.subject),
        "node": node,
        "bytes": len(data),
    }


def event_digest(event: Event) -> bytes:
    """What makes two parked events the same."""
    return blake(event.kind.encode(), event.payload())


def scorers_of(text: str) -> tuple[str, ...]:
    """Scorers as the column holds them."""
    return tuple(json.loads(text))


def tree_key(tree_id: bytes) -> bytes:
    """What an event waits for that came before its tree."""
    return b"T" + tree_id


def segment_key(segment: bytes) -> bytes:
    """What an event waits for that came before its segment."""
    return b"S" + segment


def run_key(run_id: str) -> bytes:
    """What a tree waits for that came before its run."""
    return b"R" + run_id.encode()
