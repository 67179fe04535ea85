"""A state machine that delivers messages in any order, repeatedly, late, and over restarts of the
store.

After each step it checks that no tree closed early, no row is repeated, and every sum equals that
of its rows. It runs with a store that takes epochs from the log (`rebuild`, ADR 052), where trees
are grown without a claim, too, and with one as in production, where only epochs are published that
it issued, and later ones change nothing.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from banyan.errors import Refused
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.ingest.item import Item
from services.treestore.queries import trees
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from services.treestore.training import batches
from services.treestore.unit_of_work.completion import owed
from services.treestore.unit_of_work.rows import CLOSED, CONSUMED, GROWING, LeafRow
from tests.treestore.forge import Forge, World
from tests.treestore.sums import check_sums

GROUPS, SIZE = 3, 2
PLACES = [(ordinal, index) for ordinal in range(GROUPS) for index in range(SIZE)]
pick = st.integers(0, 10_000)


class Delivery(RuleBasedStateMachine):
    """The log and the services around a store, behaving as badly as they may."""

    template: Path
    rebuild: bool

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="banyan-machine-"))
        shutil.copy(self.template, self.folder / "store.sqlite")
        self.world = World(
            self._database(), Forge(), Settings(max_claims=100, rebuild=self.rebuild)
        ).start()
        self.forge = self.world.forge
        self.specs = {
            place: self.forge.spec(place[0], place[1], SIZE, max_claims=100) for place in PLACES
        }
        self.pool: list[Item] = [self.forge.opened(spec) for spec in self.specs.values()]
        self.owed: set[int] = {
            item.sequence for item in self.pool
        }  # must be delivered at least once
        self.epoch: dict[tuple[int, int], int] = {}
        self.place_of: dict[int, tuple[int, int]] = {}
        self.next_ordinal = 0
        self.rivals = 0
        for place in PLACES if self.rebuild else ():
            self._work(place, 1)

    def _database(self) -> Database:
        return Database(f"sqlite:///{self.folder / 'store.sqlite'}").open()

    def _work(self, place: tuple[int, int], epoch: int) -> None:
        """Return the messages of a node and a verifier for a tree under a claim; earlier ones may
        still come.
        """
        items = self.forge.life(self.specs[place], epoch=epoch)
        old = {item.sequence for item in self.pool if self.place_of.get(item.sequence) == place}
        self.owed -= old
        self.place_of |= {item.sequence: place for item in items}
        self.epoch[place] = epoch
        self.pool += items
        self.owed |= {item.sequence for item in items}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.finish()
            self.world.database.close()
            shutil.rmtree(self.folder)

    # -- what may happen --

    @rule(picks=st.lists(pick, min_size=1, max_size=12))
    def deliver(self, picks: list[int]) -> None:
        items = [self.pool[p % len(self.pool)] for p in picks]
        self.world.ingest(*items)
        self.owed -= {item.sequence for item in items}

    @rule(start=pick, count=st.integers(1, 20), backwards=st.booleans())
    def deliver_a_stretch(self, start: int, count: int, backwards: bool) -> None:
        items = [self.pool[(start + i) % len(self.pool)] for i in range(count)]
        self.world.ingest(*(reversed(items) if backwards else items))
        self.owed -= {item.sequence for item in items}

    @rule(which=pick)
    def claim(self, which: int) -> None:
        place = PLACES[which % len(PLACES)]
        if self.world.rows(schema.trees, tree_id=self.specs[place].tree_id):
            self._claim(place)

    def _claim(self, place: tuple[int, int]) -> None:
        epoch = self.world.claim(self.specs[place].tree_id)
        if epoch:
            assert (
                epoch
                > self.world.one(schema.trees, tree_id=self.specs[place].tree_id).claim_epoch - 1
            )
            self._work(place, epoch)

    @precondition(lambda self: not self.rebuild)
    @rule(which=pick, ahead=st.integers(1, 2_000))
    def speak_without_a_claim(self, which: int, ahead: int) -> None:
        """Publish a whole life under an epoch that the store did not issue, and a segment that no
        other claim has.
        """
        spec = self.specs[PLACES[which % len(PLACES)]]
        stored = self.world.rows(schema.trees, tree_id=spec.tree_id)
        if not stored:
            return
        epoch, before = stored[0].claim_epoch + ahead, self._of_tree(spec.tree_id)
        stolen = self.forge.child(self.forge.root(spec), 7)
        life = [
            item
            for item in self.forge.life(spec, epoch=epoch)
            if not item.subject.endswith(".score")
        ]
        self.world.ingest(*life, self.forge.segments(stolen, epoch=epoch))
        assert self._of_tree(spec.tree_id) == before
        reasons = {
            row.reason for row in self.world.rows(schema.refused, segment=stolen.id, epoch=epoch)
        }
        assert reasons == {"EPOCH_UNKNOWN" if stored[0].state == GROWING else "STALE_EPOCH"}

    def _of_tree(self, tree_id: bytes):
        return [
            self.world.rows(table, tree_id=tree_id)
            for table in (schema.trees, schema.segments, schema.leaves)
        ]

    @rule(which=pick)
    def score_differently(self, which: int) -> None:
        """Publish another value of a second verifier; the first value counts."""
        root = self.forge.root(self.specs[PLACES[which % len(PLACES)]])
        self.rivals += 1
        self.pool.append(self.forge.score(self.forge.child(root, 0), 0.25))

    @rule()
    def restart(self) -> None:
        self.world.database.close()
        self.world.database = self._database()

    @rule(limit=st.integers(1, 2), twice=st.booleans())
    def commit(self, limit: int, twice: bool) -> None:
        ask = ts.ReadyGroupsRequest(run_id=self.forge.run_id, use="train", limit=limit)
        ready = self.world.database.query(lambda c: batches.ready(c, ask)).groups
        if ready:
            self._commit([g.group_id for g in ready], 1 + twice)

    def _commit(self, groups: list[str], times: int) -> None:
        request = ts.CommitBatchRequest(
            run_id=self.forge.run_id,
            ordinal=self.next_ordinal,
            learner_epoch=1,
            use="train",
            group_ids=groups,
        )
        for _ in range(times):
            self.world.database.transact(
                lambda c: batches.commit(c, request, self.world.now(), self.world.settings)
            )
        self.next_ordinal += 1

    @precondition(lambda self: self.next_ordinal > 0)
    @rule(which=pick)
    def commit_again(self, which: int) -> None:
        stored = self.world.rows(schema.batches)[which % self.next_ordinal]
        import json

        request = ts.CommitBatchRequest(
            run_id=self.forge.run_id,
            ordinal=self.next_ordinal,
            learner_epoch=1,
            use="train",
            group_ids=json.loads(stored.group_ids),
        )
        try:
            self.world.database.transact(
                lambda c: batches.commit(c, request, self.world.now(), self.world.settings)
            )
        except Refused as refused:
            assert refused.reason == "ALREADY_USED"
        else:
            raise AssertionError("a group was trained twice")

    # -- what must always hold --

    @invariant()
    def no_tree_is_closed_early(self) -> None:
        if not hasattr(self, "world"):
            return
        segments = {row.id: row for row in self.world.rows(schema.segments)}
        assert all(not row.parent or row.parent in segments for row in segments.values())
        for tree in self.world.rows(schema.trees):
            if tree.state in (CLOSED, CONSUMED):
                leaves, scores = self._parts(tree.tree_id)
                listed = [leaf for leaf, row in leaves.items() if row.listed]
                assert tree.grown_epoch == tree.claim_epoch and len(listed) == tree.leaves == 2
                assert all(leaf.segment in segments for leaf in listed)
                assert not owed(leaves, ("number",), scores)

    def _parts(self, tree_id: bytes):
        from banyan.tree import Leaf

        leaves = {
            Leaf(r.segment, r.end): LeafRow(r.finished, r.listed)
            for r in self.world.rows(schema.leaves, tree_id=tree_id)
        }
        scores = {
            (Leaf(r.segment, r.end), r.scorer): r
            for r in self.world.rows(schema.scores, tree_id=tree_id)
        }
        return leaves, scores

    @invariant()
    def nothing_is_there_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        for table, key in (
            (schema.scores, ("tree_id", "segment", "end", "scorer")),
            (schema.segments, ("tree_id", "parent", "fork", "ordinal")),
            (schema.batch_trees, ("tree_id", "use")),
        ):
            keys = [tuple(getattr(row, name) for name in key) for row in self.world.rows(table)]
            assert len(keys) == len(set(keys))

    @invariant()
    def the_sums_are_those_of_the_rows(self) -> None:
        if hasattr(self, "world"):
            check_sums(self.world)

    # -- the end --

    def finish(self) -> None:
        """Publish all that is owed; then the store holds the rows that an orderly log would have
        given it.
        """
        self._deliver_what_is_owed()
        for place in PLACES:
            if place not in self.epoch:
                self._claim(place)
        self._deliver_what_is_owed()
        assert not self.world.rows(schema.dead)
        for place, spec in self.specs.items():
            tree = self.world.database.query(lambda c, spec=spec: trees.read(c, [spec.tree_id]))[0]
            expected = self._expected(place)
            assert tree.state in (tree_pb2.TREE_STATE_CLOSED, tree_pb2.TREE_STATE_CONSUMED), place
            assert list(tree.segments) == list(expected.segments)
            assert list(tree.leaves) == list(expected.leaves)
            assert [s.leaf for s in tree.scores] == [s.leaf for s in expected.scores]
            if not self.rivals:
                assert list(tree.scores) == list(expected.scores)
        self.no_tree_is_closed_early()
        self.nothing_is_there_twice()
        self.the_sums_are_those_of_the_rows()
        self.commit(limit=2, twice=True)

    def _deliver_what_is_owed(self) -> None:
        todo = [item for item in self.pool if item.sequence in self.owed]
        for start in range(0, len(todo), 7):
            self.world.ingest(*todo[start : start + 7])
        self.owed.clear()

    def _expected(self, place: tuple[int, int]) -> tree_pb2.Tree:
        return self.reference[place]

    reference: dict[tuple[int, int], tree_pb2.Tree]


@pytest.mark.parametrize("rebuild", [False, True], ids=["as in production", "rebuilding"])
def test_any_order_any_number_any_restart(
    sqlite_template: Path, tmp_path: Path, rebuild: bool
) -> None:
    path = tmp_path / "reference.sqlite"
    shutil.copy(sqlite_template, path)
    orderly = World(
        Database(f"sqlite:///{path}").open(), settings=Settings(rebuild=rebuild)
    ).start()
    reference = {}
    for ordinal, index in PLACES:
        spec = orderly.forge.spec(ordinal, index, SIZE, max_claims=100)
        orderly.live(spec)
        reference[(ordinal, index)] = orderly.database.query(
            lambda c, spec=spec: trees.read(c, [spec.tree_id])
        )[0]
    orderly.database.close()
    machine = type(
        "Machine",
        (Delivery,),
        {"template": sqlite_template, "reference": reference, "rebuild": rebuild},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
