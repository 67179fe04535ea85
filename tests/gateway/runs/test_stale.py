"""The bound on age at the gate (RollArt, arXiv 2512.22560; ADR 015).

No batch takes a group that was opened more than max_staleness steps before.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from banyan.recipe import Control
from services.gateway.runs.staleness_gate import Gate, GroupCounts, PolicySteps
from tests.gateway.runs.test_gate import World


def test_a_group_may_be_trained_on_for_max_staleness_steps() -> None:
    gate = Gate(4, max_staleness=1, drop=True)
    assert gate.steps(GroupCounts(5, 5, 0, 2), 0) == PolicySteps(4, 6)
    assert [gate.steps(GroupCounts(0, 0, 0, 0), i).last for i in range(8)] == [1] * 8
    assert Gate(4, 0, drop=True).steps(GroupCounts(3, 3, 0, 0), 0) == PolicySteps(3, 3)
    assert Gate(4, 1).steps(GroupCounts(5, 5, 0, 2), 0) == PolicySteps(4), (
        "kept as long as it takes"
    )
    assert Gate.of(Control(stale_groups="drop", max_staleness=2)) == Gate(8, 2, drop=True)


class Ageing(World):
    """The world of the gate, with a store that drops old groups, and a learner that may be slow."""

    def begun(self) -> None:
        self.gate = replace(self.gate, drop=True)
        self.opened: dict[int, tuple[int, int]] = {}  # step when it was opened, last step
        self.late: set[int] = set()  # dropped for their age

    def reconcile(self, counts: GroupCounts) -> None:
        for position in range(self.gate.groups_to_open(counts, self.steps)):
            ordinal, last = counts.opened + position, self.gate.steps(counts, position).last
            assert last is not None
            # A group that the broker lost is opened anew; any other keeps its first opening.
            if ordinal not in self.on_the_wire | self.stored.keys():
                self.opened[ordinal] = (counts.step, last)
        super().reconcile(counts)

    def ingest(self, ordinal: int) -> None:
        super().ingest(ordinal)
        self.published()  # one that is first heard of under a later policy is too old

    def published(self) -> None:
        for ordinal, state in self.stored.items():
            if state in ("open", "closed") and self.opened[ordinal][1] < self.step:
                self.stored[ordinal] = "dropped"
                self.late.add(ordinal)

    @rule()
    def a_step_passes_over_the_oldest(self) -> None:
        """Let the newest groups close first, so that others grow old: chance seldom does this."""
        self.reconcile(self.view())
        for ordinal in self.on_the_wire:
            self.ingest(ordinal)
        growing = sorted((o for o, state in self.stored.items() if state == "open"), reverse=True)
        closed = sorted(o for o, state in self.stored.items() if state == "closed")
        taken = (closed + growing)[: self.batch]
        if self.step != self.batches or self.batches == self.steps or len(taken) < self.batch:
            return
        assert all(self.step - self.opened[o][0] <= self.gate.max_staleness for o in taken)
        self.stored |= dict.fromkeys(taken, "consumed")
        self.batches += 1
        self.learner_publishes()

    @rule(data=st.data())
    def late_results_come(self, data: st.DataObject) -> None:
        """Check that a dropped group stays so: the store keeps late results aside."""
        if self.late:
            assert self.stored[data.draw(st.sampled_from(sorted(self.late)))] == "dropped"

    @invariant()
    def what_is_trained_is_fresh(self) -> None:
        if not hasattr(self, "opened"):
            return
        usable = [o for o, state in self.stored.items() if state in ("open", "closed")]
        # This bounds any batch that takes them.
        assert all(self.step - self.opened[o][0] <= self.gate.max_staleness for o in usable)
        assert not self.late & {o for o, state in self.stored.items() if state == "consumed"}


TestStale = Ageing.TestCase
TestStale.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("drop", [False, True])
def test_without_staleness_nothing_is_ever_too_old(drop: bool) -> None:
    world = Ageing() if drop else World()
    world.begin(batch=3, staleness=0, extra=0, steps=5, short=False)
    order: list[tuple[int, ...]] = []
    while world.batches < world.steps:
        world.reconcile(world.view())
        world.stored |= dict.fromkeys(world.on_the_wire - world.stored.keys(), "closed")
        closed = sorted(o for o, state in world.stored.items() if state == "closed")
        order.append(tuple(closed[:3]))
        world.stored |= dict.fromkeys(closed[:3], "consumed")
        world.batches += 1
        world.step += 1
        world.published()
    assert order == [(3 * i, 3 * i + 1, 3 * i + 2) for i in range(5)], "the synchronous order"
    assert not getattr(world, "late", None)
