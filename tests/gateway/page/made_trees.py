"""Trees for the page: a run with a recipe, bushy trees, and texts that are hostile."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from banyan.recipe_loader import load
from banyan.segment import Finish, Segment
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from tests.treestore.client import Store
from tests.treestore.forge import Forge

HOSTILE = "</script><script>alert(1)</script>\u202e\x1b[31m&lt;\r\ndata: x\n\nevent: over\n\n"
RECIPE = {
    "name": "page",
    "model": "none",
    "task": {"name": "arithmetic", "holdout": 0.3},
    "generate": {"policy": "treepo", "settings": {"width": 4}},
    "control": {"groups_per_batch": 4},
    "budget": {"steps": 10},
    "resources": {"engine": "scripted"},
}


class RunForge(Forge):
    """A forge whose run has a recipe."""

    def run(self, held_out: tuple[bytes, ...] = (), **more: Any) -> rs.Run:
        run = super().run(held_out, **more)
        run.recipe_json = load.resolve(dict(RECIPE)).model_dump_json()
        return run


def branches(
    forge: Forge, root: Segment, widths: Sequence[int], length: int = 8, text: str = "text"
) -> Iterator[list[Segment]]:
    """Yield the levels of a tree below its root; each segment of a level forks so many times."""
    level = [root]
    for depth, width in enumerate(widths):
        last = depth == len(widths) - 1
        finish = Finish.STOP if last else Finish.BOUNDARY
        level = [
            forge.child(
                parent,
                ordinal,
                length,
                finish=finish,
                text=f"{text} {depth}.{ordinal} ",
                entropies_T=np.full(length, 0.5, np.float16),
            )
            for parent in level
            for ordinal in range(width)
        ]
        yield level


async def grow(
    store: Store, spec: tree_pb2.TreeSpec, widths: Sequence[int], text: str = "text"
) -> list[Segment]:
    """Store a whole tree, every other leaf right; return its leaves' segments."""
    forge = store.forge
    await store.publish(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    levels = [[root], *branches(forge, root, widths, text=text)]
    for level in levels:
        for at in range(0, len(level), 64):
            await store.publish(forge.segments(*level[at : at + 64], epoch=epoch))
    leaves = levels[-1]
    await store.publish(*(forge.leaf(leaf, epoch=epoch) for leaf in leaves))
    await store.publish(forge.grown(spec.tree_id, *leaves, epoch=epoch))
    await store.publish(*(forge.score(leaf, float(i % 2)) for i, leaf in enumerate(leaves)))
    await closed(store, spec.tree_id)
    return leaves


async def closed(store: Store, tree_id: bytes, deadline_s: float = 60.0) -> None:
    """Wait until a tree is closed."""
    filters = ts.TreeFilter(tree_ids=[tree_id])
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        answer = await rpc.call(store.trees.ListTrees, ts.ListTreesRequest(filter=filters))
        if [tree.state for tree in answer.trees] == [tree_pb2.TREE_STATE_CLOSED]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"tree {tree_id.hex()} is not closed after {deadline_s} s")
