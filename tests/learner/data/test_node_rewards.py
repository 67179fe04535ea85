"""Rewards of places inside paths, from the store's ingest to the rows of a batch: what gigpo, hgpo, sage-skill and mars2
make of them, by hand. And a tree policy that scores such places, from the grower through the store to the learner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from banyan import facts, registry
from banyan.digest import blake
from banyan.errors import InvalidInput
from banyan.plugins import Branch, Expansion
from banyan.policy import PolicyVersion
from banyan.recipe_loader.load import resolve
from banyan.segment import Segment
from banyan.tree import Leaf, Tree
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire.segments import leaf_to_wire, segment_to_wire
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.cuts import upto
from services.learner.data import from_store
from services.learner.data.prepare import Lesson, study
from services.rollout.clients import messages
from services.rollout.engines.scripted.engine import build
from services.rollout.growth import scores as leaf_scores
from services.rollout.growth.grower import Grower, GrowthStep
from services.treestore.ingest.item import Item
from services.treestore.queries import trees
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.rows import CLOSED
from tests.rollout.growing import ENDLESS, spec
from tests.treestore.forge import Forge, World

POLICY = b"now"
CHAINS = [(1.0, 1.0, 1.0), (1.0, 0.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
"""Of each path: the reward of its first part, which is a place's own, that of its leaf, and whether a skill was used."""
R1, R2, USED = (np.array(column) for column in zip(*CHAINS, strict=True))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}").open()
    yield World(database, Forge(), Settings()).start()
    database.close()


def score(forge: Forge, tree_id: bytes, place: Leaf, value: float | None, **parts: float) -> Item:
    if value is None:
        said = tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason="EXCEPTION")
    else:
        said = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value, parts=parts)
    scored = tree_pb2.ScoredLeaf(leaf=leaf_to_wire(place), scorer="number", scorer_version="1", score=said)
    event = events_pb2.LeafScored(run_id=forge.run_id, tree_id=tree_id, scored=scored)
    return forge.item("score", events_pb2.LeavesScored(scores=[event]))


def end(segment: Segment) -> Leaf:
    return Leaf(segment.id, len(segment))


def group(world: World, chains: Sequence[tuple[float | None, float, float]] = CHAINS) -> list[tree_pb2.Tree]:
    """A group of closed trees, as the store gives them to a learner; a tree is a path of two parts of four tokens each."""
    forge, specs = world.forge, [world.forge.spec(0, index, len(chains)) for index in range(len(chains))]
    for spec_, (first, second, used) in zip(specs, chains, strict=True):
        epoch, root = world.open(spec_), forge.root(spec_)
        one = forge.child(root)
        two = forge.child(one)
        world.ingest(
            forge.segments(root, one, two, epoch=epoch),
            forge.leaf(one, epoch=epoch),
            forge.leaf(two, epoch=epoch),
            forge.grown(spec_.tree_id, two, epoch=epoch),
            score(forge, spec_.tree_id, end(two), second, used=used),
        )
        assert world.one(schema.trees, tree_id=spec_.tree_id).state != CLOSED, "the place inside lacks its score"
        world.ingest(score(forge, spec_.tree_id, end(one), first))
        assert world.one(schema.trees, tree_id=spec_.tree_id).state == CLOSED
    return world.database.query(lambda c: trees.read(c, [s.tree_id for s in specs]))


def lesson(given: list[tree_pb2.Tree], name: str, **settings: Any) -> Lesson:
    """What a step learns from: a batch of these trees."""
    groups = from_store.by_group(given, [given[0].spec.group_id])
    return study(groups, registry.estimator(name, settings), lambda _tree, _leaf: False, POLICY, 1000)


def parts(found: Lesson) -> list[tuple[float, float]]:
    """Of each trained path of the rows: the advantage of its first part's tokens, and of its second's."""
    said = []
    for row in found.rows:
        for mask_T, advantage_T in zip(row.mask_P_T, row.advantage_P_T, strict=True):
            first, second = np.split(advantage_T[mask_T], 2)
            assert np.ptp(first) == np.ptp(second) == 0 and len(first) == len(second) == 4
            said.append((float(first[0]), float(second[0])))
    return said


def expect(found: Lesson, first: np.ndarray, second: np.ndarray) -> None:
    np.testing.assert_allclose(parts(found), np.stack([first, second], 1), atol=1e-5)


def test_gigpo_gets_the_rewards_of_steps(world: World) -> None:
    """All first steps share a state, the prompt; second steps follow four different places."""
    total, back = R1 + R2, R1 + 0.5 * R2
    found = lesson(group(world), "gigpo", gamma=0.5, rows="episodes")
    expect(found, total - total.mean() + back - back.mean(), total - total.mean())


def test_hgpo_gets_the_rewards_of_steps(world: World) -> None:
    back = R1 + 0.5 * R2
    scaled = (back - back.mean()) / back.std()
    found = lesson(group(world), "hgpo", gamma=0.5, history=0)
    expect(found, np.where(scaled == 0, 0, scaled), np.zeros(4))


def test_sage_skill_gets_the_end_of_the_first_task(world: World) -> None:
    bonus = (R2 == 1) * USED
    one, two = R1 + (R1 == 1) * bonus, R2 + bonus
    expect(lesson(group(world), "sage-skill"), one - one.mean(), two - two.mean())


def test_mars2_gets_the_rewards_of_programs(world: World) -> None:
    """A program has no sibling: r' = r; its repair has the program above it: r' = r + α (r − r of the program)."""
    shaped = np.stack([R1, R2 + 0.5 * (R2 - R1)], 1)
    spread = shaped.std(1, ddof=1, keepdims=True)
    expected = (shaped - shaped.mean(1, keepdims=True)) / np.where(spread == 0, 1, spread)
    expect(lesson(group(world), "mars2"), *expected.T)


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "sage-skill", "mars2"])
def test_a_path_with_a_place_that_could_not_be_scored_takes_no_part(world: World, name: str) -> None:
    """Never a reward of 0: the group is what it is without that path."""
    broken = group(world, [*CHAINS, (None, 1.0, 1.0)])
    found, whole = lesson(broken, name), lesson(broken[:4], name)
    assert parts(found) == parts(whole) and len(parts(found)) == 4
    assert np.isnan(found.credits[0].advantages.leaf_G_L[4]).all()


def test_an_estimator_of_leaves_alone_keeps_such_a_path(world: World) -> None:
    assert len(parts(lesson(group(world, [*CHAINS, (None, 1.0, 1.0)]), "grpo"))) == 5


# -- a run --


@dataclass(frozen=True)
class TwoTasks(Growing):
    """Two tasks in a row on each path: the end of the first is scored where it is, and is no leaf of the tree."""

    width: int = 2
    gives: ClassVar[frozenset[str]] = frozenset({facts.INSIDE, facts.STEPS})
    needs_scores = True

    async def grow(self, growth: Growth) -> None:
        for ordinal in range(self.width):
            growth.start(self._chain(growth, Branch(*growth.root, ordinal)))

    async def _chain(self, growth: Growth, branch: Branch) -> None:
        first = await growth.run(Expansion(branch, upto(growth.view.sampling, 4)))
        growth.mark(first.leaf, "task 1")
        await growth.reward(first.leaf)
        growth.drop(first.leaf)
        growth.end(await growth.run(Expansion(Branch(*_place(first.leaf), 0), upto(growth.view.sampling, 4))))


def _place(leaf: Leaf) -> tuple[bytes, int]:
    return leaf.segment, leaf.end


def reward(completion: str, **row: Any) -> float:
    """A scorer that a recipe may name."""
    return 1.0


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "sage-skill", "mars2"])
def test_a_recipe_whose_policy_scores_places_is_taken(name: str) -> None:
    recipe = {"name": "r", "model": "m", "task": {"name": "arithmetic"}, "optimise": {"advantage": name}}
    scorers = [{"name": f"{__name__}:reward"}]
    found = resolve(recipe | {"generate": {"policy": f"{__name__}:TwoTasks"}, "filter": scorers})
    assert found.optimise.advantage == name
    with pytest.raises(InvalidInput, match="needs a reward"):
        resolve(recipe | {"optimise": {"advantage": "sage-skill"}, "filter": scorers})


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "sage-skill", "mars2"])
def test_a_tree_policy_that_scores_places_trains_on_them(world: World, name: str) -> None:
    given = world.forge.spec(generate_json='{"name": "two"}')
    run = Run(world, given)
    run.tell(run.grower.start())
    run.engine_steps()
    firsts = list(run.grower.leaves)
    assert len(firsts) == 2 and run.grower.lacks_scores
    for place, value in zip(firsts, (1.0, 0.0), strict=True):
        world.ingest(score(world.forge, given.tree_id, place, value))
    (tree,) = world.database.query(lambda c: trees.read(c, [given.tree_id]))
    run.tell(run.grower.scored(leaf_scores.from_wire(tree.scores)))
    run.engine_steps()
    leaves = [leaf for leaf in run.grower.leaves if leaf not in firsts]
    assert run.inside == tuple(sorted(firsts)), "the end of growth names them"
    for leaf, value in zip(leaves, (1.0, 0.5), strict=True):
        world.ingest(score(world.forge, given.tree_id, leaf, value, used=1.0))
    assert world.one(schema.trees).state == CLOSED and not world.rows(schema.parked)
    (tree,) = world.database.query(lambda c: trees.read(c, [given.tree_id]))
    (scored,) = from_store.by_group([tree], [given.group_id])[0][1]
    assert scored.rewards == {**dict(zip(firsts, (1.0, 0.0), strict=True)), **dict(zip(leaves, (1.0, 0.5), strict=True))}
    assert scored.leaves == leaves and scored.facts.rewards == dict(zip(firsts, (1.0, 0.0), strict=True))
    found = parts(lesson([tree], name))
    assert len(found) == 2 and found[0][0] > 0 > found[1][0], "the first task that was right, against the one that was not"


class Run:
    """A node's part of a tree: what its grower says goes to the store as it would over the log."""

    def __init__(self, world: World, given: tree_pb2.TreeSpec) -> None:
        self.world, self.given, self.epoch = world, given, world.open(given)
        settings = replace(spec(f"{__name__}:TwoTasks", {}, 8), tree_id=given.tree_id)
        self.engine = build(dict(ENDLESS), PolicyVersion(1, 0, blake(b"policy")), 64)
        self.grower = Grower(settings, Tree(given.tree_id), self.engine.tokenizer, "node-1", self.epoch)

    def engine_steps(self) -> None:
        while self.grower.in_flight:
            self.tell(self.grower.ended(self.engine.step()))

    def tell(self, step: GrowthStep) -> None:
        for request in step.requests:
            self.engine.submit(request)
        forge, run_id, tree_id = self.world.forge, self.given.run_id, self.given.tree_id
        made = [events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=self.epoch) for s in step.segments]
        items = [forge.item("segment", events_pb2.SegmentsGrown(run_id=run_id, node_id="node-1", segments=made))]
        items += [forge.item("leaf", messages.leaf(run_id, tree_id, self.epoch, m, "text").message) for m in step.leaves]
        if step.grown is not None:
            said = messages.grown(run_id, "node-1", tree_id, self.epoch, step.grown, inside=step.inside)
            items.append(forge.item("grown", said.message))
        self.inside = step.inside
        self.world.ingest(*items)
