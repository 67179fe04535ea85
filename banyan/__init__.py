"""Reinforcement learning of language models on rollout trees.

    import banyan

    run = banyan.train("quickstart")          # everything on this machine, until the run is over
    with banyan.open(".banyan") as store:     # reads runs and trees, also when nothing runs
        print(store.run().frame())

Importing this package loads no torch and no gRPC; each name below is loaded when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from banyan.cli.train.called import train
    from banyan.client import AsyncClient, Client
    from banyan.errors import BanyanError
    from banyan.stored import (
        Evaluation,
        Leaf,
        Lineage,
        NodeCredit,
        Run,
        Score,
        Segment,
        Store,
        Tree,
        TreeSummary,
    )
    from banyan.stored.store import open_store as open

_STORED = "banyan.stored"
_PLACES = {
    "AsyncClient": ("banyan.client", "AsyncClient"),
    "BanyanError": ("banyan.errors", "BanyanError"),
    "Client": ("banyan.client", "Client"),
    "Evaluation": (_STORED, "Evaluation"),
    "Leaf": (_STORED, "Leaf"),
    "Lineage": (_STORED, "Lineage"),
    "NodeCredit": (_STORED, "NodeCredit"),
    "Run": (_STORED, "Run"),
    "Score": (_STORED, "Score"),
    "Segment": (_STORED, "Segment"),
    "Store": (_STORED, "Store"),
    "Tree": (_STORED, "Tree"),
    "TreeSummary": (_STORED, "TreeSummary"),
    "open": (_STORED, "open_store"),
    "train": ("banyan.cli.train.called", "train"),
}

__all__ = [
    "AsyncClient",
    "BanyanError",
    "Client",
    "Evaluation",
    "Leaf",
    "Lineage",
    "NodeCredit",
    "Run",
    "Score",
    "Segment",
    "Store",
    "Tree",
    "TreeSummary",
    "open",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'banyan' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
