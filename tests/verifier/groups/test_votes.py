"""Votes of evaluations, weighted by what the store heard of the policy's head."""

import json

from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from services.verifier.store import specs_of
from tests.treestore.client import Store
from tests.verifier.groups.world import RECIPE, grow, verifier


async def test_votes_of_an_evaluation_are_weighted_by_what_the_store_heard(
    store, eventually, monkeypatch
):
    """7 has one voice, with 0.75 behind it; 8 has two, with 0.25 and 0.375."""
    voted = RECIPE | {"eval": {"filter": [{"name": "number"}], "votes": {"weight": "head"}}}
    monkeypatch.setattr("services.verifier.store.specs_of", lambda _: specs_of(json.dumps(voted)))
    names = ["vote", "head-vote"]
    shared = {"scorers": names, "group_scorers": names, "label": "after-voted"}
    warm, cold = (store.forge.spec(ordinal, 0, 1, **shared) for ordinal in (6, 7))
    async with verifier(store):
        await grow(store, warm, ["7", "8", "8.0"], heads=(0.75, 0.25, 0.375))
        await grow(store, cold, ["7", "8", "8.0"])
        for spec, by_head in ((warm, [1.0, 0.0, 0.0]), (cold, [0.0, 0.0, 0.0])):
            wanted = {"vote": [0.0, 1.0, 1.0], "head-vote": by_head}
            await eventually(lambda spec=spec, wanted=wanted: gives(store, spec, wanted))


async def gives(store: Store, spec: tree_pb2.TreeSpec, wanted: dict[str, list[float]]) -> bool:
    """Return True if the leaves of a tree have these values from left to right, by scorer."""
    tree = (await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=spec.tree_id))).tree
    places = {segment.id: segment.ordinal for segment in tree.segments}
    found: dict[str, dict[int, float]] = {}
    for scored in tree.scores:
        by_leaf = found.setdefault(scored.scorer, {})
        by_leaf[places[scored.leaf.segment]] = scored.score.value
    return {
        name: [value for _, value in sorted(values.items())] for name, values in found.items()
    } == wanted
