"""A node that begins holds nothing: its trees are queued at once, and each stays counted as an attempt (ADR 048)."""

import pytest

from banyan.errors import Refused
from services.treestore import arrivals, claims, schema
from services.treestore.rows import DROPPED
from tests.treestore.forge import World


def _begins(world: World, node: str) -> int:
    run_id = world.forge.run_id
    return world.database.transact(lambda c: arrivals.begins(c, run_id, node, world.now(), world.settings))


def test_what_a_node_held_is_queued_at_once_when_it_begins_again(world: World) -> None:
    specs = [world.forge.spec(ordinal) for ordinal in range(3)]
    for spec in specs:
        world.open(spec)
    mine, moved, others = (spec.tree_id for spec in specs)
    world.silence()
    world.claim(mine, "rollout-0")
    world.claim(moved, "rollout-0")
    world.claim(moved, "rollout-1")
    world.claim(others, "rollout-1")
    before = len(world.tickets())
    args = world.now(), world.settings
    assert world.database.transact(lambda c: arrivals.begins(c, "other-00000001", "rollout-0", *args)) == 0, "of another run"
    assert _begins(world, "rollout-0") == 1
    row = next(r for r in world.rows(schema.trees) if r.tree_id == mine)
    assert len(world.tickets()) == before + 1 and row.claim_node == "" and row.idle_claims == 2  # an attempt it stays
    with pytest.raises(Refused) as refused:  # the dead one, should it only have been away
        world.database.transact(lambda c: claims.renew(c, mine, row.claim_epoch, world.now(), world.settings))
    assert refused.value.reason == "STALE_EPOCH"
    assert world.claim(mine, "rollout-0", ticket=row.ticket - 1) == 0  # what the broker delivers again is old
    assert world.claim(mine, "rollout-0", ticket=row.ticket) == row.claim_epoch + 1
    assert _begins(world, "rollout-2") == 0


def test_a_tree_on_which_nodes_die_is_dropped_in_the_end(world: World) -> None:
    spec = world.forge.spec(max_claims=3)
    world.ingest(world.forge.opened(spec))
    for _ in range(4):
        world.claim(spec.tree_id, "rollout-0")
        _begins(world, "rollout-0")
    tree = world.one(schema.trees)
    assert (tree.state, tree.reason) == (DROPPED, "NO_PROGRESS")
