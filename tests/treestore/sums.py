"""Checks that sums and counts equal those of the rows."""

import itertools

from services.treestore.control import progress
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CLOSED, CONSUMED, GROWING, GroupState
from tests.treestore.forge import World


def check_sums(world: World) -> None:
    """Check that every tally equals the sum of its rows."""
    check_groups(world)
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    rows = [t for t in world.rows(schema.trees) if not t.label]
    assert read.samples.sampled_tokens == sum(t.sampled_tokens for t in rows)
    assert read.samples.leaves == sum(t.leaves for t in rows if t.state != GROWING)
    done = [t for t in rows if t.state in (CLOSED, CONSUMED)]
    assert read.samples.scored + read.samples.unscorable == sum(t.leaves for t in done)
    values = sum((t.mean_reward or 0.0) * t.leaves for t in done)
    assert abs(read.samples.reward_sum - values) < 1e-9


def check_groups(world: World) -> None:
    """Check that the counts of groups are those of the rows."""
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    rows = [t for t in world.rows(schema.trees) if not t.label]
    groups = [g for g in world.rows(schema.groups) if not g.label]
    states = [GroupState(g.state) for g in groups]
    assert (
        read.groups.open,
        read.groups.closed,
        read.groups.consumed,
        read.groups.dropped,
    ) == tuple(
        states.count(s)
        for s in (GroupState.OPEN, GroupState.CLOSED, GroupState.CONSUMED, GroupState.DROPPED)
    )
    whole = {g.ordinal for g in groups if g.opened == g.size}
    assert read.groups.opened == next(n for n in itertools.count() if n not in whole)
    assert all(
        g.done == sum(t.group_id == g.group_id and t.closed_ms > 0 for t in rows) for g in groups
    )
