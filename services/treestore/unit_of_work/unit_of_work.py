"""The rows that one transaction loads, changes and makes.

`load` fills a UnitOfWork, the rules read it, `ingest.apply` and `lifecycle` change it, and
`write.flush` writes it.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from banyan.digest import blake
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from services.chassis.renderers.stored import Bridge
from services.treestore.events.events import Event
from services.treestore.storage import mapping
from services.treestore.storage.mapping import Values
from services.treestore.storage.settings import Settings
from services.treestore.storage.tokens.path_tokens import SegmentTokens
from services.treestore.unit_of_work import completion, dead_letters
from services.treestore.unit_of_work.outgoing_events import OutgoingEvents
from services.treestore.unit_of_work.parked_events import ParkedEvent, ParkedEvents
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
from services.treestore.unit_of_work.segment_bounds import Limits, SpecBounds

_COLUMN = {
    GroupState.OPEN: "open",
    GroupState.CLOSED: "closed",
    GroupState.CONSUMED: "consumed",
    GroupState.DROPPED: "dropped",
}


@dataclass(slots=True)
class UnitOfWork:
    """Rows by key, and the changes to them.

    Fields named `new_…` are rows to insert, in order, or their keys; fields named `changed_…` are
    keys of rows to write.

    now_ms: time of the transaction, on the store's clock
    settings: settings of the store
    gateway_epoch: newest epoch that a gateway took
    runs: runs by id
    limits: bounds of segments, by run
    spec_bounds: bounds of segments by the tree's spec, for trees of runs with limits
    given: tokens of environments' answers on the path to a segment's end, for trees that act
    tokens: segments by id on the paths to answers whose tokens are rendered again
    bridges: what renders them, by tree; None where it cannot be made here
    trees: trees by id
    members: trees by group (run, group id) and index
    stored_states: states of the trees as they are in the database
    parts: leaves and scores by tree
    headers: segments by id
    headers_of: segments by tree
    places: ids of segments by tree, parent, fork and ordinal
    lost: segments that were refused for good
    groups: groups by run and group id
    groups_at: groups by run, label and ordinal
    tallies: sums by run and label
    parked: events that wait
    outgoing: events that go out after the commit
    new_dead: dead letters with their rows
    touched: trees that waiters may wait for
    ended: trees that were closed or dropped
    grown: number of trees that were grown, by run and node; 0 for one that delivered segments only
    """

    now_ms: int
    settings: Settings
    gateway_epoch: int = 0
    runs: dict[str, RunRow] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    spec_bounds: dict[bytes, SpecBounds | None] = field(default_factory=dict)
    given: dict[bytes, int] = field(default_factory=dict)
    tokens: dict[bytes, SegmentTokens] = field(default_factory=dict)
    bridges: dict[bytes, Bridge | None] = field(default_factory=dict)
    trees: dict[bytes, TreeRow] = field(default_factory=dict)
    members: dict[tuple[str, str], dict[int, TreeRow]] = field(default_factory=dict)
    stored_states: dict[bytes, int] = field(default_factory=dict)
    parts: dict[bytes, TreeParts] = field(default_factory=dict)
    headers: dict[bytes, SegmentHeader] = field(default_factory=dict)
    headers_of: dict[bytes, list[SegmentHeader]] = field(default_factory=dict)
    places: dict[tuple[bytes, bytes, int, int], bytes] = field(default_factory=dict)
    lost: set[bytes] = field(default_factory=set)
    groups: dict[tuple[str, str], GroupRow] = field(default_factory=dict)
    groups_at: dict[tuple[str, str, int], GroupRow] = field(default_factory=dict)
    tallies: dict[tuple[str, str], TallyRow] = field(default_factory=dict)
    parked: ParkedEvents = field(default_factory=ParkedEvents)
    outgoing: OutgoingEvents = field(default_factory=OutgoingEvents)
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
    new_dead: list[tuple[events_pb2.DeadLetter, Values]] = field(default_factory=list)
    touched: set[bytes] = field(default_factory=set)
    ended: list[TreeRow] = field(default_factory=list)
    grown: Counter[tuple[str, str]] = field(default_factory=Counter)

    # -- reading --

    def part(self, tree_id: bytes) -> TreeParts:
        """Return the leaves and scores of a tree. Raises RuntimeError if they were not loaded.

        Rows that were not loaded must not look like rows that do not exist: a rule would take
        leaves of before for new ones, and a tree without scores for one that is owed all.
        """
        if tree_id not in self.parts:
            raise RuntimeError(f"leaves and scores of tree {tree_id.hex()[:12]} were not loaded")
        return self.parts[tree_id]

    def tally_to_change(self, tree: TreeRow | GroupRow) -> TallyRow:
        """Return the sums that a tree or group counts in, and mark them to be written."""
        key = (tree.run_id, tree.label)
        if key not in self.tallies:
            self.tallies[key] = TallyRow(*key)
            self.new_tallies.add(key)
        self.changed_tallies.add(key)
        return self.tallies[key]

    def group(self, tree: TreeRow) -> GroupRow:
        """Return the group of a tree."""
        return self.groups[(tree.run_id, tree.group_id)]

    def of_group(self, group: GroupRow) -> list[TreeRow]:
        """Return the loaded trees of a group."""
        return list(self.members.get((group.run_id, group.group_id), {}).values())

    def inside(self, tree_id: bytes) -> list[Leaf]:
        """Return the places inside a tree's paths that must be scored.

        The headers of a tree that may have any are loaded (`load_insides`).
        """
        leaves = self.part(tree_id).leaves
        if not completion.marked(leaves):
            return []
        headers = self.headers_of.get(tree_id, ())
        return completion.inside(
            leaves, {header.id: (header.parent, header.fork) for header in headers}
        )

    def owed(self, tree: TreeRow) -> list[tuple[Leaf, str]]:
        """Return the scores that a grown tree lacks."""
        part = self.part(tree.tree_id)
        return completion.owed(
            part.leaves,
            tree.scorers,
            part.scores,
            inside=self.inside(tree.tree_id),
            groups=part.groups,
        )

    # -- changing --

    def change(self, tree: TreeRow) -> TreeRow:
        """Mark a tree's row to be written, and return it."""
        self.changed_trees.add(tree.tree_id)
        self.touched.add(tree.tree_id)
        return tree

    def move_group(self, group: GroupRow, state: GroupState, reason: str = "") -> None:
        """Set the state of a group, and move it in the sums."""
        tally = self.tally_to_change(group)
        old, new = _COLUMN[GroupState(group.state)], _COLUMN[state]
        setattr(tally, old, getattr(tally, old) - 1)
        setattr(tally, new, getattr(tally, new) + 1)
        group.state, group.reason = int(state), reason
        self.changed_groups.add((group.run_id, group.group_id))

    def add_tree(self, tree: TreeRow) -> None:
        """Make a tree known to the rules."""
        self.trees[tree.tree_id] = tree
        self.members.setdefault((tree.run_id, tree.group_id), {})[tree.tree_index] = tree

    def open_tree(self, tree: TreeRow, group_scorers: Iterable[str]) -> None:
        """Add a tree that has no leaves and scores yet."""
        self.add_tree(self.change(tree))
        self.parts[tree.tree_id] = TreeParts(groups=tuple(group_scorers))

    def add_group(self, group: GroupRow) -> None:
        """Make a group known to the rules."""
        self.groups[(group.run_id, group.group_id)] = group
        self.groups_at[(group.run_id, group.label, group.ordinal)] = group

    def add_header(self, header: SegmentHeader) -> None:
        """Make a segment known to the rules."""
        if header.id in self.headers:
            return
        self.headers[header.id] = header
        self.headers_of.setdefault(header.tree_id, []).append(header)
        place = (header.tree_id, header.parent, header.fork, header.ordinal)
        self.places[place] = header.id

    def put_leaf(self, tree_id: bytes, leaf: Leaf) -> LeafRow:
        """Return the row of a leaf, made if it is missing, and mark it to be written."""
        leaves = self.part(tree_id).leaves
        if leaf not in leaves:
            leaves[leaf] = LeafRow()
            self.new_leaves.add((tree_id, leaf))
        self.changed_leaves.add((tree_id, leaf))
        self.touched.add(tree_id)
        return leaves[leaf]

    def put_score(self, scored: events_pb2.LeafScored) -> None:
        """Add a terminal score."""
        leaf = Leaf(scored.scored.leaf.segment, scored.scored.leaf.end)
        row = ScoreRow.of(scored.scored)
        self.part(scored.tree_id).scores[(leaf, scored.scored.scorer)] = row
        self.touched.add(scored.tree_id)
        columns = mapping.LEAF_SCORED.to_columns(scored)
        self.new_scores.append({**columns, "stored_ms": self.now_ms})

    # -- events that do not become facts --

    def park(self, event: Event, waits_for: bytes) -> None:
        """Keep an event until the fact with key `waits_for` comes."""
        self.parked.add(ParkedEvent(event, waits_for))

    def owner_columns(self, event: Event, size: int, epoch: int = 0) -> Values:
        """Return the columns by which kept rows are bounded: run, node with the claim, bytes.

        An event under another claim than the newest (`epoch`, 0 for none) is not the node's doing.
        """
        tree = self.trees.get(event.tree_id)
        node = tree.claim_node if tree and epoch in (0, tree.claim_epoch) else ""
        return {"run_id": event.run_id, "node": node, "bytes": size}

    def refuse(
        self,
        event: Event,
        epoch: int,
        reason: str,
        *,
        segment: bytes = b"",
        end: int = 0,
        winner: bytes = b"",
    ) -> None:
        """Keep an event that a rule forbids, with the rule (`reason`)."""
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
                **self.owner_columns(event, len(payload), epoch),
            }
        )
        self.touched.add(event.tree_id)

    def add_late(self, event: Event, reason: str) -> None:
        """Keep a score that came too late to count."""
        payload = event.payload()
        values = {
            "digest": blake(payload),
            "tree_id": event.tree_id,
            "payload": payload,
            "reason": reason,
            "stored_ms": self.now_ms,
            **self.owner_columns(event, len(payload)),
        }
        self.new_late.append(values)

    def dead_letter(self, letter: events_pb2.DeadLetter, tree_id: bytes = b"") -> None:
        """Keep the letter of a message; `tree_id`: the tree that it is about, if known."""
        tree = self.trees.get(tree_id)
        node = tree.claim_node if tree else ""
        self.new_dead.append((letter, dead_letters.to_columns(letter, self.now_ms, node)))


def scorers_of(text: str) -> tuple[str, ...]:
    """Return the scorers in the text of their column."""
    return tuple(json.loads(text))
