"""A node that starts holds nothing: its trees are queued at once, and each stays counted as an
attempt (ADR 048).
"""

import pytest

from banyan.errors import Refused
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import arrivals
from services.treestore.lifecycle import claims
from services.treestore.loops import deadlines
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import DROPPED
from tests.treestore.forge import World


def _begins(world: World, node: str) -> int:
    run_id = world.forge.run_id
    return world.database.transact(
        lambda c: arrivals.end_claims(c, run_id, node, world.now(), world.settings)
    )


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
    assert (
        world.database.transact(
            lambda c: arrivals.end_claims(c, "other-00000001", "rollout-0", *args)
        )
        == 0
    ), "of another run"
    assert _begins(world, "rollout-0") == 1
    row = next(r for r in world.rows(schema.trees) if r.tree_id == mine)
    assert (
        len(world.tickets()) == before + 1 and row.claim_node == "" and row.idle_claims == 2
    )  # it stays an attempt
    with pytest.raises(Refused) as refused:  # of the dead node, if it was only away
        world.database.transact(
            lambda c: claims.renew(c, mine, row.claim_epoch, world.now(), world.settings)
        )
    assert refused.value.reason == "STALE_EPOCH"
    assert (
        world.claim(mine, "rollout-0", ticket=row.ticket - 1) == 0
    )  # a redelivery of the broker is old
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


def _arrives(world: World, joined: bool = False, **flags: bool) -> None:
    member = rs.Member(node_id="rollout-0", run_id=world.forge.run_id, joined=joined)
    request = rs.PutMemberRequest(member=member, **flags)
    world.database.transact(
        lambda c: arrivals.record_member(c, request, world.now(), world.settings)
    )
    world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))


def test_what_a_node_may_have_taken_before_it_died_is_queued_too(world: World) -> None:
    """The broker would give it to other nodes only after 15 s."""
    specs = [world.forge.spec(ordinal) for ordinal in range(3)]
    for spec in specs:
        world.ingest(world.forge.opened(spec))
    world.claim(specs[0].tree_id, "rollout-1")
    before = world.tickets()
    _arrives(world, begins=True)  # for the first time: it has taken nothing
    _arrives(world)
    assert world.tickets() == before
    _arrives(world, begins=True)
    assert world.tickets() == [*before, 2, 2]
    for spec in specs[1:]:
        assert world.claim(spec.tree_id, "rollout-1", ticket=1) == 0, (
            "what the broker delivers again is old"
        )
        assert world.claim(spec.tree_id, "rollout-0", ticket=2) == 1
    row = next(r for r in world.rows(schema.trees) if r.tree_id == specs[0].tree_id)
    assert (row.claim_node, row.claim_epoch) == ("rollout-1", 1), "what others hold they keep"


def test_a_joined_node_makes_nobodys_assignments_old(world: World) -> None:
    spec = world.forge.spec()
    world.ingest(world.forge.opened(spec))
    for _ in range(3):
        _arrives(world, joined=True, begins=True)
    assert len(world.tickets()) == 1 and world.claim(spec.tree_id, "rollout-1", ticket=1) == 1


def test_a_node_that_left_has_given_all_back(world: World) -> None:
    world.ingest(world.forge.opened(world.forge.spec()))
    _arrives(world, begins=True)
    _arrives(world, leaving=True)
    before = world.tickets()
    _arrives(world, begins=True)
    assert world.tickets() == before
