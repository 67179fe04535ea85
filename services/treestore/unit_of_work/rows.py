"""The rows that a transaction works on, as the rules see them; `write.flush` writes them back."""

import enum
from dataclasses import dataclass, field

from banyan.segment import Kind
from banyan.tree import Leaf
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.treestore.events.text import without_nul

GROWING = int(tree_pb2.TREE_STATE_GROWING)
SCORING = int(tree_pb2.TREE_STATE_SCORING)
CLOSED = int(tree_pb2.TREE_STATE_CLOSED)
CONSUMED = int(tree_pb2.TREE_STATE_CONSUMED)
DROPPED = int(tree_pb2.TREE_STATE_DROPPED)
SCORED = int(tree_pb2.SCORE_STATE_SCORED)
UNSCORABLE = int(tree_pb2.SCORE_STATE_UNSCORABLE)
TRAIN = int(tree_pb2.TREE_PURPOSE_TRAIN)
OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
"""States of runs that are over."""
ANSWER = frozenset({int(Kind.POLICY), int(Kind.FORCED)})
"""Kinds of the segments that make up an answer, whoever chose the tokens."""


class GroupState(enum.IntEnum):
    """State of a group: OPEN until its last tree is closed or dropped."""

    OPEN = 1
    CLOSED = 2
    CONSUMED = 3
    DROPPED = 4


@dataclass(slots=True)
class TreeRow:
    """A tree without its long texts; the columns are described in `storage.schema.lineage`."""

    tree_id: bytes
    run_id: str
    group_id: str
    tree_index: int
    purpose: int
    label: str
    traceparent: str
    scorers: tuple[str, ...]
    score_deadline_ms: int
    max_claims: int
    opened_ms: int
    scorer_weights: tuple[float, ...] = ()
    state: int = GROWING
    reason: str = ""
    claim_epoch: int = 0
    claim_node: str = ""
    claim_due_ms: int = 0
    idle_claims: int = 0
    returns: int = 0
    ticket: int = 0
    growth_due_ms: int = 0
    grown_epoch: int = 0
    grown_node: str = ""
    grown_digest: bytes | None = None
    score_due_ms: int = 0
    remind_due_ms: int = 0
    closed_ms: int = 0
    segments: int = 0
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    leaves: int = 0
    mean_reward: float | None = None
    policy_step: int = 0
    claim_traceparent: str = ""

    @property
    def over(self) -> bool:
        """True if the tree is closed, consumed or dropped."""
        return self.state not in (GROWING, SCORING)


_TREE_COLUMNS = tuple(TreeRow.__dataclass_fields__)
_FIRST_CHANGING = _TREE_COLUMNS.index("state")
FIXED, CHANGING = _TREE_COLUMNS[:_FIRST_CHANGING], _TREE_COLUMNS[_FIRST_CHANGING:]
"""Columns of a tree that never change after it was opened, and the others."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A stored segment without its tokens, texts and numbers.

    id: digest of the segment
    tree_id: its tree
    parent: id of its parent; empty for the root
    fork: tokens of the parent that it continues
    ordinal: position among its siblings
    length: tokens
    kind: number of the `Kind`
    finish: number of the `Finish`
    prefix_sampled: tokens of the answer on the path before it
    """

    id: bytes
    tree_id: bytes
    parent: bytes
    fork: int
    ordinal: int
    length: int
    kind: int
    finish: int
    prefix_sampled: int

    def answer_tokens(self, end: int) -> int:
        """Return the tokens of the answer on the path up to token `end` of the segment."""
        return self.prefix_sampled + (end if self.kind in ANSWER else 0)


@dataclass(slots=True)
class LeafRow:
    """An accepted leaf, or another place that was put before scorers.

    finished: LeafFinished came
    listed: TreeGrown lists it
    reason: the reason why the path ended
    completion: text of the path; None if not loaded or missing
    """

    finished: bool = False
    listed: bool = False
    reason: str = ""
    completion: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A terminal score.

    state: SCORED or UNSCORABLE
    value: the score; 0 if UNSCORABLE
    reason: the reason why the leaf is UNSCORABLE
    version: version of the scorer
    """

    state: int
    value: float
    reason: str
    version: str

    @classmethod
    def of(cls, scored: tree_pb2.ScoredLeaf) -> "ScoreRow":
        """Return the row of a message, with the texts as the database stores them."""
        return cls(
            state=int(scored.score.state),
            value=scored.score.value,
            reason=without_nul(scored.score.reason),
            version=without_nul(scored.scorer_version),
        )


@dataclass(slots=True)
class GroupRow:
    """The trees of one example; the columns are described in `storage.schema.lineage`."""

    run_id: str
    group_id: str
    label: str
    ordinal: int
    purpose: int
    size: int
    opened: int = 0
    done: int = 0
    dropped: int = 0
    state: int = int(GroupState.OPEN)
    reason: str = ""
    take: int = 0
    take_in_order: int = 0
    last_step: int = -1

    def too_old(self, step: int) -> bool:
        """Return True if no batch may take the group any more, given the newest policy's step."""
        return self.purpose == TRAIN and 0 <= self.last_step < step


@dataclass(slots=True)
class TallyRow:
    """Sums of one run and label; the columns are described in `storage.schema.lineage`."""

    run_id: str
    label: str
    prefix: int = 0
    groups: int = 0
    open: int = 0
    closed: int = 0
    consumed: int = 0
    dropped: int = 0
    sampled_tokens: int = 0
    path_tokens: int = 0
    prompt_tokens: int = 0
    prompt_path_tokens: int = 0
    unique_tokens: int = 0
    used_tokens: int = 0
    leaves: int = 0
    scored: int = 0
    unscorable: int = 0
    reward_sum: float = 0.0
    correct: int = 0
    votes: int = 0
    vote_sum: float = 0.0
    vote_correct: int = 0
    vote_leaf_sum: float = 0.0
    vote_leaf_correct: float = 0.0
    head_votes: int = 0
    head_vote_sum: float = 0.0
    head_vote_correct: int = 0
    head_vote_leaf_sum: float = 0.0
    head_vote_leaf_correct: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run, as far as the rules need it.

    run_id: its id
    over: it succeeded, failed or was cancelled
    held_out: digests of the held-out examples
    step: newest policy that is not abandoned; -1 before the base policy
    """

    run_id: str
    over: bool
    held_out: frozenset[bytes]
    step: int


@dataclass(slots=True)
class TreeParts:
    """Leaves and scores of one tree.

    leaves: rows by place
    scores: rows by place and scorer
    groups: scorers of whole groups; loaded where places inside paths may owe a score
    """

    leaves: dict[Leaf, LeafRow] = field(default_factory=dict)
    scores: dict[tuple[Leaf, str], ScoreRow] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
