"""Lines of files of trees, and runs of `banyan advantages` on them."""

import json
import sys
from typing import Any

from banyan.cli import main


def tree(tree_id: str, nodes: Any, task: str = "t") -> str:
    return json.dumps(
        {"tree_id": tree_id, "task_id": task, "nodes": [{"id": "root", "parent": None}, *nodes]}
    )


def node(
    name: str, parent: str = "root", reward: float | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": name,
        "parent": parent,
        "reward": reward,
        "tokens": [1, 2],
        "logprobs": [-1.0, -1.0],
        **more,
    }


def flat(tree_id: str, *rewards: float | None, task: str = "t") -> str:
    return tree(tree_id, [node(f"{tree_id}{i}", reward=r) for i, r in enumerate(rewards)], task)


def run(*arguments: str) -> int:
    before, sys.argv = sys.argv, ["banyan", *arguments]
    try:
        main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


TREEPO_TREE = tree(
    "t1",
    [
        node("a"),
        node("a1", "a", 1),
        node("a2", "a", 0),
        node("b"),
        node("b1", "b", 0),
        node("b2", "b", 0),
    ],
)
