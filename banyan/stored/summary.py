"""A tree in one line, as lists of trees have it."""

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from banyan.stored.plain import name_of, when
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts

if TYPE_CHECKING:
    from banyan.stored.store import Store
    from banyan.stored.tree import Tree


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """Tree without its segments.

    tree_id, group_id: the tree, hex, and the group that it is compared within
    state: GROWING, SCORING, CLOSED, CONSUMED or DROPPED
    reason: reason of the drop; None of others
    purpose: TRAIN or EVAL; then `label` names the evaluation
    leaves, segments, sampled_tokens: counts; the last of tokens that the policy sampled
    mean_reward: of the scored leaves; None without any
    policy_step: step of its newest segment
    opened, closed: times in UTC; `closed` is None while it is neither closed nor dropped
    """

    tree_id: str
    run_id: str
    group_id: str
    state: str
    reason: str | None
    purpose: str
    label: str | None
    leaves: int
    segments: int
    sampled_tokens: int
    mean_reward: float | None
    policy_step: int
    opened: datetime.datetime | None
    closed: datetime.datetime | None
    _store: "Store" = field(repr=False, compare=False)

    @classmethod
    def of(cls, message: ts.TreeSummary, store: "Store") -> "TreeSummary":
        """Return the summary of a message."""
        return cls(
            tree_id=message.tree_id.hex(),
            run_id=message.run_id,
            group_id=message.group_id,
            state=name_of(tree_pb2.TreeState, message.state),
            reason=message.reason or None,
            purpose=name_of(tree_pb2.TreePurpose, message.purpose),
            label=message.label or None,
            leaves=message.leaves,
            segments=message.segments,
            sampled_tokens=message.sampled_tokens,
            mean_reward=message.mean_reward if message.HasField("mean_reward") else None,
            policy_step=message.policy_step,
            opened=when(message.opened_unix_ms),
            closed=when(message.closed_unix_ms),
            _store=store,
        )

    def read(self) -> "Tree":
        """Return the whole tree."""
        return self._store.tree(self.tree_id)
