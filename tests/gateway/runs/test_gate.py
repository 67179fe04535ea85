"""The staleness gate under drops, restarts, lost messages and stale views: no stall, no excess."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import ValidationError

from banyan.recipe import Control
from services.gateway.runs.staleness_gate import Gate, GroupCounts


def _counts(step=0, batches=0, open=0, closed=0, **more) -> GroupCounts:
    return GroupCounts(step, batches, open, closed, **more)


def test_the_first_batch_is_opened_whole_and_then_nothing() -> None:
    gate = Gate(groups_per_batch=8, max_staleness=0)
    assert gate.groups_to_open(_counts(), 16) == 8
    assert gate.groups_to_open(_counts(open=8), 16) == 0
    assert gate.groups_to_open(_counts(open=3, closed=5), 16) == 0


def test_a_dropped_group_gives_its_place_back() -> None:
    gate = Gate(8, 0)
    assert gate.groups_to_open(_counts(open=5, dropped=3), 16) == 3


def test_nothing_is_opened_between_a_batch_and_its_policy_without_staleness() -> None:
    gate = Gate(8, 0)
    assert gate.groups_to_open(_counts(step=0, batches=1), 16) == 0
    assert gate.groups_to_open(_counts(step=1, batches=1), 16) == 8


def test_staleness_lets_sampling_run_ahead_but_not_beyond_the_budget() -> None:
    gate = Gate(8, 2)
    assert gate.groups_to_open(_counts(), 16) == 24
    assert gate.groups_to_open(_counts(step=14, batches=14), 16) == 16
    assert gate.groups_to_open(_counts(step=15, batches=16), 16) == 0


def test_a_rewound_learner_opens_nothing_until_it_has_caught_up() -> None:
    assert Gate(8, 1).groups_to_open(_counts(step=3, batches=9), 16) == 0


def test_each_group_names_the_oldest_policy_that_is_still_fresh_for_its_batch() -> None:
    gate = Gate(groups_per_batch=4, max_staleness=1)
    start = _counts()
    assert [gate.min_step(start, i) for i in range(8)] == [0] * 8
    later = _counts(step=5, batches=5, closed=2)
    assert [gate.min_step(later, i) for i in range(6)] == [4, 4, 5, 5, 5, 5]
    assert Gate(4, 0).min_step(_counts(step=5, batches=5), 3) == 5


def test_over_provisioning_keeps_more_groups_in_hand_than_a_step_takes() -> None:
    gate = Gate(4, max_staleness=2, extra=3)
    assert gate.groups_to_open(_counts(), 16) == 7
    # The batch is trained on: no group is begun under the old policy.
    assert gate.groups_to_open(_counts(batches=1, open=3), 16) == 0
    assert gate.groups_to_open(_counts(step=1, batches=1, open=3), 16) == 4
    # The last batch takes no more than it needs.
    assert gate.groups_to_open(_counts(step=15, batches=15, open=3), 16) == 1
    later = _counts(step=5, batches=5, open=3)
    assert [gate.min_step(later, i) for i in range(4)] == [3, 4, 4, 4]


def test_a_recipe_that_carries_groups_over_allows_them_to_be_stale() -> None:
    with pytest.raises(ValidationError, match="max_staleness to at least 1"):
        Control(over_provision=2)
    assert Gate.of(Control(over_provision=2, max_staleness=1)) == Gate(8, 1, 2)


class World(RuleBasedStateMachine):
    """A store, a log, a learner and nodes, as the gate sees them; the gateway has no memory."""

    @initialize(
        batch=st.integers(1, 5),
        staleness=st.integers(0, 3),
        extra=st.integers(0, 4),
        steps=st.integers(1, 7),
        short=st.booleans(),
    )
    def begin(self, batch: int, staleness: int, extra: int, steps: int, short: bool) -> None:
        self.gate = Gate(batch, staleness, extra)
        self.batch, self.steps, self.short = batch, steps, short
        self.stored: dict[int, str] = {}
        self.on_the_wire: set[int] = set()
        self.step = self.newest_step = self.batches = self.missing = 0
        self.views = [self.view()]
        self.begun()

    def begun(self) -> None:
        """Add state of a subclass."""

    def count(self, state: str) -> int:
        return sum(1 for s in self.stored.values() if s == state)

    def published(self) -> None:
        """React to a new policy, as a store may."""

    def ingest(self, ordinal: int) -> None:
        """Store the opening of a group; a second one changes nothing."""
        self.stored.setdefault(ordinal, "open")

    def view(self) -> GroupCounts:
        opened = next(i for i in range(len(self.stored) + 1) if i not in self.stored)
        return GroupCounts(
            step=self.step,
            batches=self.batches,
            open=self.count("open"),
            closed=self.count("closed"),
            dropped=self.count("dropped"),
            opened=opened,
        )

    def ended(self) -> None:
        self.views = [*self.views[-4:], self.view()]

    def reconcile(self, counts: GroupCounts) -> None:
        for position in range(self.gate.groups_to_open(counts, self.steps)):
            assert self.gate.min_step(counts, position) <= counts.step
            self.on_the_wire.add(counts.opened + position)

    @rule(age=st.integers(0, 4))
    def gateway_reconciles(self, age: int) -> None:
        self.reconcile(self.views[max(0, len(self.views) - 1 - age)])

    @rule(data=st.data())
    def store_ingests(self, data: st.DataObject) -> None:
        for ordinal in data.draw(st.lists(st.sampled_from(sorted(self.on_the_wire) or [None]))):
            if ordinal is not None:
                self.ingest(ordinal)
        self.ended()

    @rule()
    def the_broker_forgets(self) -> None:
        self.on_the_wire.clear()

    @rule(data=st.data(), to=st.sampled_from(["closed", "dropped"]))
    def a_group_ends(self, data: st.DataObject, to: str) -> None:
        growing = [o for o, s in self.stored.items() if s == "open"]
        if growing:
            self.stored[data.draw(st.sampled_from(growing))] = to
        self.ended()

    @rule(data=st.data())
    def learner_commits(self, data: st.DataObject) -> None:
        closed = sorted(o for o, s in self.stored.items() if s == "closed")
        size = data.draw(st.integers(1, self.batch)) if self.short else self.batch
        if self.step != self.batches or len(closed) < size or self.batches == self.steps:
            return
        for ordinal in closed[:size]:
            self.stored[ordinal] = "consumed"
        self.missing += self.batch - size
        self.batches += 1
        self.ended()

    @rule()
    def learner_publishes(self) -> None:
        self.step = min(self.step + 1, self.batches)
        self.newest_step = max(self.newest_step, self.step)
        self.published()
        self.ended()

    @precondition(lambda self: self.step > 0)
    @rule(data=st.data())
    def learner_dies_and_rewinds(self, data: st.DataObject) -> None:
        self.step = data.draw(st.integers(0, self.step))
        self.ended()

    @invariant()
    def within_the_bound(self) -> None:
        if not hasattr(self, "gate"):
            return
        usable = {o for o, s in self.stored.items() if s in ("open", "closed")} | (
            self.on_the_wire - self.stored.keys()
        )
        further = 0 if self.gate.extra else self.gate.max_staleness
        ahead = (self.newest_step + 1 + further - self.batches) * self.batch + self.gate.extra
        assert (
            len(usable)
            <= max(0, min(ahead, (self.steps - self.batches) * self.batch)) + self.missing
        )

    def teardown(self) -> None:
        if not hasattr(self, "gate"):
            return
        for _ in range(4 * self.steps + 4):
            self.reconcile(self.view())
            for ordinal in self.on_the_wire:
                self.ingest(ordinal)
            self.stored = {o: "closed" if s == "open" else s for o, s in self.stored.items()}
            closed = sorted(o for o, s in self.stored.items() if s == "closed")
            if self.step == self.batches < self.steps and len(closed) >= self.batch:
                self.stored |= dict.fromkeys(closed[: self.batch], "consumed")
                self.batches += 1
            self.step = min(self.step + 1, self.batches)
            self.published()
        assert self.step == self.steps, (
            f"stalled at step {self.step} of {self.steps}: {self.view()}"
        )


TestGate = World.TestCase
TestGate.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
