"""The rows that a transaction works on, as it sees them: mutable, written back by Book.flush."""

import enum
from dataclasses import dataclass, field

from banyan.segment import Kind
from banyan.tree import Leaf
from banyan.v1 import tree_pb2

GROWING = int(tree_pb2.TREE_STATE_GROWING)
SCORING = int(tree_pb2.TREE_STATE_SCORING)
CLOSED = int(tree_pb2.TREE_STATE_CLOSED)
CONSUMED = int(tree_pb2.TREE_STATE_CONSUMED)
DROPPED = int(tree_pb2.TREE_STATE_DROPPED)
SCORED = int(tree_pb2.SCORE_STATE_SCORED)
UNSCORABLE = int(tree_pb2.SCORE_STATE_UNSCORABLE)
TRAIN = int(tree_pb2.TREE_PURPOSE_TRAIN)
ANSWER = frozenset(
    {int(Kind.POLICY), int(Kind.FORCED)}
)  # what an answer is made of, whoever chose the tokens


class GroupState(enum.IntEnum):
    """Where a group stands: OPEN until its last tree is closed or dropped."""

    OPEN = 1
    CLOSED = 2
    CONSUMED = 3
    DROPPED = 4


@dataclass(slots=True)
class TreeRow:
    """A tree without its big texts."""

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
        """Whether it is closed, consumed or dropped."""
        return self.state not in (GROWING, SCORING)


FIXED = tuple(TreeRow.__dataclass_fields__)[:11]
CHANGING = tuple(TreeRow.__dataclass_fields__)[11:]


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the rules need to know of a stored segment."""

    id: bytes
    tree_id: bytes
    parent: bytes
    fork: int
    ordinal: int
    length: int
    kind: int
    prefix_sampled: int


@dataclass(slots=True)
class LeafRow:
    """An accepted leaf, or another place that was put before scorers."""

    finished: bool = False  # LeafFinished came
    listed: bool = False  # TreeGrown names it
    reason: str = ""
    completion: str | None = None  # None: as it is stored, or none


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A terminal score."""

    state: int
    value: float
    reason: str
    version: str


@dataclass(slots=True)
class GroupRow:
    """The trees of one prompt row."""

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
        """Return whether no batch may take the group any more, as the newest policy is `step`."""
        return self.purpose == TRAIN and 0 <= self.last_step < step


@dataclass(slots=True)
class TallyRow:
    """Sums of one run and label."""

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
    leaves: int = 0
    scored: int = 0
    unscorable: int = 0
    reward_sum: float = 0.0
    correct: int = 0


@dataclass(slots=True)
class RunRow:
    """What the rules need to know of a run."""

    run_id: str
    over: bool
    held_out: frozenset[bytes]
    step: int  # newest policy that is not abandoned; -1 before the base policy


@dataclass(slots=True)
class TreeParts:
    """Leaves and scores of one tree."""

    leaves: dict[Leaf, LeafRow] = field(default_factory=dict)
    scores: dict[tuple[Leaf, str], ScoreRow] = field(default_factory=dict)
    groups: tuple[
        str, ...
    ] = ()  # scorers of whole groups; known where places inside paths may be owed a score
