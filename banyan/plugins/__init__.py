"""Protocols that plugins implement, one module per axis. A plugin is one file of one idea.

Plugins are pure: they see recorded facts and return decisions, never tensors, weights, sockets or
clocks. They are registered by entry point (`banyan.generate`, `banyan.filter`, `banyan.control`,
`banyan.rooms`, `banyan.replay`, `banyan.optimise`) or named as module:attribute.

A name is imported when it is first used, with the module that has it: a scorer's process then needs
neither the modules of the other axes nor numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_NAMES = {
    "banyan.plugins.control": (
        "KEPT_GROUPS KEPT_SOLVED NO_STATS Allocation Budget Curriculum GroupFacts "
        "PromptStats RoomShare RowStats Waiting"
    ),
    "banyan.plugins.filter": "GroupScorer Repair Row Scored Scorer Unscorable",
    "banyan.plugins.generate": (
        "NOTHING_NEW Branch Expansion GrowthBudget GrowthView LeafMark News Observation "
        "Plan Planner Repaired Rewards Room TreePolicy"
    ),
    "banyan.plugins.optimise": "Advantages Estimator GroupTrees",
    "banyan.plugins.replay": "Replay StoredGroup",
    "banyan.plugins.transcript": "Observed Part Transcript",
    "banyan.segment": "Finish Sampling",
    "banyan.signals": "Signals Wanted",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Return a name of this package, whose module is imported now."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return all names, those not yet imported too."""
    return sorted({*globals(), *_MODULES})
