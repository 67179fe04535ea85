"""A state machine that mixes openings, growth and ends of groups' trees with the policies under
which the groups grow too old.

After each step no group that is too old counts for the staleness gate or can be trained on, the
counts of a group are those of its trees, and the groups of a batch were young enough and whole.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.training import batches, policies
from services.treestore.unit_of_work.rows import CLOSED, CONSUMED, DROPPED, GROWING, GroupState
from tests.treestore.forge import Forge, World
from tests.treestore.sums import check_groups
from tests.treestore.training.test_stale import put_policy

SIZE = 2
LAST = (0, 1, 1, 2)  # newest policy under which a batch may take each group
PLACES = [(ordinal, index) for ordinal in range(len(LAST)) for index in range(SIZE)]
places = st.sampled_from(PLACES)


class Ageing(RuleBasedStateMachine):
    """Messages about groups in any order, among policies that pass by."""

    template: Path

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="banyan-ageing-"))
        shutil.copy(self.template, self.folder / "store.sqlite")
        self.world = World(
            Database(f"sqlite:///{self.folder / 'store.sqlite'}").open(), Forge()
        ).start()
        self.specs = {
            (ordinal, index): self.world.forge.spec(ordinal, index, SIZE, last_step=LAST[ordinal])
            for ordinal, index in PLACES
        }
        self.epoch, self.step = 1, 0
        self.reached, self.batches = 0, 0
        put_policy(self.world, 0)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.finish()
            self.world.database.close()
            shutil.rmtree(self.folder)

    # -- what may happen --

    @rule(which=st.lists(places, min_size=1, max_size=3))
    def open(self, which: list[tuple[int, int]]) -> None:
        self.world.ingest(self.world.forge.all_opened([self.specs[place] for place in which]))

    @rule(place=places, whole=st.booleans())
    def grow(self, place: tuple[int, int], whole: bool) -> None:
        """Grow and score a tree; the last score may still be to come."""
        spec = self.specs[place]
        if self.world.rows(schema.trees, tree_id=spec.tree_id) and (
            epoch := self.world.claim(spec.tree_id)
        ):
            life = self.world.forge.life(spec, epoch=epoch)
            self.world.ingest(*(life if whole else life[:-1]))

    @rule(place=places)
    def fail(self, place: tuple[int, int]) -> None:
        spec = self.specs[place]
        if self.world.rows(schema.trees, tree_id=spec.tree_id) and (
            epoch := self.world.claim(spec.tree_id)
        ):
            self.world.return_tree(spec.tree_id, epoch, "UNUSABLE: no")

    @rule()
    def publish(self) -> None:
        """Publish the next policy; a policy that was there before its learner was restarted is a
        replayed one.
        """
        self.step += 1
        put_policy(self.world, self.step, self.epoch, replayed=self.step <= self.reached)
        self.reached = max(self.reached, self.step)

    @rule()
    def go_back(self) -> None:
        """Restart the learner, at the base policy."""
        request = rs.TakeLearnerEpochRequest(
            run_id=self.world.forge.run_id, learner_id="next", checkpoint_step=0
        )
        self.epoch = self.world.database.transact(lambda c: policies.take_epoch(c, request)).epoch
        put_policy(self.world, 0, self.epoch, replayed=True)
        self.step = 0

    @rule()
    def commit(self) -> None:
        ask = ts.ReadyGroupsRequest(run_id=self.world.forge.run_id, use="train", limit=1)
        for group in self.world.database.query(lambda c: batches.ready(c, ask)).groups:
            assert self.step <= LAST[group.ordinal], "a batch would take what is too old"
            request = ts.CommitBatchRequest(
                run_id=self.world.forge.run_id,
                ordinal=self.batches,
                learner_epoch=self.epoch,
                use="train",
                group_ids=[group.group_id],
            )
            self.world.database.transact(
                lambda c, request=request: batches.commit(
                    c, request, self.world.now(), self.world.settings
                )
            )
            self.batches += 1

    # -- what must always hold --

    @invariant()
    def nothing_that_is_too_old_is_in_hand(self) -> None:
        if hasattr(self, "world"):
            for group in self.world.rows(schema.groups):
                in_hand = group.state in (GroupState.OPEN, GroupState.CLOSED)
                assert not (in_hand and group.last_step < self.step), group.group_id

    @invariant()
    def the_counts_of_a_group_are_those_of_its_trees(self) -> None:
        if not hasattr(self, "world"):
            return
        check_groups(self.world)
        for group in self.world.rows(schema.groups):
            states = [tree.state for tree in self.world.rows(schema.trees, group_id=group.group_id)]
            assert (group.opened, group.dropped) == (len(states), states.count(DROPPED))
            if group.state == GroupState.CLOSED:
                assert len(states) == SIZE and CLOSED in states
            if group.state == GroupState.DROPPED:
                assert set(states) <= {DROPPED}
            if group.state == GroupState.CONSUMED:
                assert set(states) <= {CONSUMED, DROPPED} and "STALE" not in self._reasons(
                    group.group_id
                )

    def _reasons(self, group_id: str) -> set[str]:
        return {tree.reason for tree in self.world.rows(schema.trees, group_id=group_id)}

    def finish(self) -> None:
        """Open all trees, and make all groups too old: none counts for the staleness gate then."""
        self.open(PLACES)
        assert all(group.opened == SIZE for group in self.world.rows(schema.groups))
        while self.step <= max(LAST):
            self.publish()
            self.nothing_that_is_too_old_is_in_hand()
        self.the_counts_of_a_group_are_those_of_its_trees()
        assert {group.state for group in self.world.rows(schema.groups)} <= {
            GroupState.CONSUMED,
            GroupState.DROPPED,
        }
        assert not self.world.rows(schema.trees, state=GROWING)


def test_no_order_of_messages_and_policies_loses_a_place_or_trains_on_what_is_too_old(
    sqlite_template: Path,
) -> None:
    machine = type("Machine", (Ageing,), {"template": sqlite_template})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
