"""Protocols that plugins implement, one module per axis. A plugin is one file of one idea.

Plugins are pure: they see recorded facts and return decisions, never tensors, weights, sockets or
clocks. They are registered by entry point (`banyan.generate`, `banyan.filter`, `banyan.control`,
`banyan.rooms`, `banyan.replay`, `banyan.optimise`) or named as module:attribute.
"""

from banyan.plugins.control import (
    KEPT_GROUPS,
    KEPT_SOLVED,
    NO_STATS,
    Allocation,
    Budget,
    Curriculum,
    GroupFacts,
    PromptStats,
    RoomShare,
    RowStats,
    Waiting,
)
from banyan.plugins.filter import GroupScorer, Repair, Row, Scored, Scorer, Unscorable
from banyan.plugins.generate import (
    NOTHING_NEW,
    Branch,
    Expansion,
    GrowthBudget,
    GrowthView,
    LeafMark,
    News,
    Observation,
    Plan,
    Planner,
    Repaired,
    Rewards,
    Room,
    TreePolicy,
)
from banyan.plugins.optimise import Advantages, Estimator, GroupTrees
from banyan.plugins.replay import Replay, StoredGroup
from banyan.plugins.transcript import Observed, Part, Transcript
from banyan.segment import Finish, Sampling
from banyan.signals import Signals, Wanted

__all__ = [
    "KEPT_GROUPS",
    "KEPT_SOLVED",
    "NOTHING_NEW",
    "NO_STATS",
    "Advantages",
    "Allocation",
    "Branch",
    "Budget",
    "Curriculum",
    "Estimator",
    "Expansion",
    "Finish",
    "GroupFacts",
    "GroupScorer",
    "GroupTrees",
    "GrowthBudget",
    "GrowthView",
    "LeafMark",
    "News",
    "Observation",
    "Observed",
    "Part",
    "Plan",
    "Planner",
    "PromptStats",
    "Repair",
    "Repaired",
    "Replay",
    "Rewards",
    "Room",
    "RoomShare",
    "Row",
    "RowStats",
    "Sampling",
    "Scored",
    "Scorer",
    "Signals",
    "StoredGroup",
    "Transcript",
    "TreePolicy",
    "Unscorable",
    "Waiting",
    "Wanted",
]
