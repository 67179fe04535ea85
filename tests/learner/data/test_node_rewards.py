"""Rewards of places inside paths, from the store's ingest to the sequences of a batch.

The advantages of gigpo, hgpo, sage-skill and mars2 are compared with numbers by hand. A tree policy
that scores such places runs from the grower through the store to the learner.
"""

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
from services.learner.data.prepare import Lesson, build_lesson
from services.rollout.clients import messages
from services.rollout.engines.scripted.engine import build
from services.rollout.growth import scores
from services.rollout.growth.grower import Grower
from services.rollout.growth.step import GrowthStep
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
"""Reward of a path's first part, a place's own; reward of its leaf; 1.0 if a skill was used."""
R1, R2, USED = (np.array(column) for column in zip(*CHAINS, strict=True))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}").open()
    yield World(database, Forge(), Settings()).start()
    database.close()


def score(forge: Forge, tree_id: bytes, place: Leaf, value: float | None, **parts: float) -> Item:
    if value is None:
        result = tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason="EXCEPTION")
    else:
        result = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value, parts=parts)
    scored = tree_pb2.ScoredLeaf(
        leaf=leaf_to_wire(place), scorer="number", scorer_version="1", score=result
    )
    event = events_pb2.LeafScored(run_id=forge.run_id, tree_id=tree_id, scored=scored)
    return forge.item("score", events_pb2.LeavesScored(scores=[event]))


def end(segment: Segment) -> Leaf:
    return Leaf(segment.id, len(segment))


def group(
    world: World, chains: Sequence[tuple[float | None, float, float]] = CHAINS
) -> list[tree_pb2.Tree]:
    """Return a group of closed trees as a learner gets them, each a path of 2 parts of 4 tokens."""
    forge, specs = (
        world.forge,
        [world.forge.spec(0, index, len(chains)) for index in range(len(chains))],
    )
    for spec_, (first, second, used) in zip(specs, chains, strict=True):
        epoch, root = world.open(spec_), forge.root(spec_)
        first_part = forge.child(root)
        second_part = forge.child(first_part)
        world.ingest(
            forge.segments(root, first_part, second_part, epoch=epoch),
            forge.leaf(first_part, epoch=epoch),
            forge.leaf(second_part, epoch=epoch),
            forge.grown(spec_.tree_id, second_part, epoch=epoch),
            score(forge, spec_.tree_id, end(second_part), second, used=used),
        )
        assert world.one(schema.trees, tree_id=spec_.tree_id).state != CLOSED, (
            "the place inside lacks its score"
        )
        world.ingest(score(forge, spec_.tree_id, end(first_part), first))
        assert world.one(schema.trees, tree_id=spec_.tree_id).state == CLOSED
    return world.database.query(lambda c: trees.read(c, [s.tree_id for s in specs]))


def lesson(stored: list[tree_pb2.Tree], name: str, **settings: Any) -> Lesson:
    """Return the lesson of a batch of these trees."""
    groups = from_store.by_group(stored, [stored[0].spec.group_id])
    return build_lesson(
        groups, registry.estimator(name, settings), lambda _tree, _leaf: False, POLICY, 1000
    )


def parts(learned: Lesson) -> list[tuple[float, float]]:
    """Return the advantages of the first and of the second part of each trained path."""
    result = []
    for sequence in learned.sequences:
        for mask_T, advantage_T in zip(sequence.mask_P_T, sequence.advantage_P_T, strict=True):
            first, second = np.split(advantage_T[mask_T], 2)
            assert np.ptp(first) == np.ptp(second) == 0 and len(first) == len(second) == 4
            result.append((float(first[0]), float(second[0])))
    return result


def expect(learned: Lesson, first: np.ndarray, second: np.ndarray) -> None:
    np.testing.assert_allclose(parts(learned), np.stack([first, second], 1), atol=1e-5)


def test_gigpo_gets_the_rewards_of_steps(world: World) -> None:
    """First steps share a state, the prompt; second steps follow four different places."""
    total, back = R1 + R2, R1 + 0.5 * R2
    learned = lesson(group(world), "gigpo", gamma=0.5, rows="episodes")
    expect(learned, total - total.mean() + back - back.mean(), total - total.mean())


def test_hgpo_gets_the_rewards_of_steps(world: World) -> None:
    back = R1 + 0.5 * R2
    scaled = (back - back.mean()) / back.std()
    learned = lesson(group(world), "hgpo", gamma=0.5, history=0)
    expect(learned, np.where(scaled == 0, 0, scaled), np.zeros(4))


def test_sage_skill_gets_the_end_of_the_first_task(world: World) -> None:
    bonus = (R2 == 1) * USED
    first_task, second_task = R1 + (R1 == 1) * bonus, R2 + bonus
    expect(
        lesson(group(world), "sage-skill"),
        first_task - first_task.mean(),
        second_task - second_task.mean(),
    )


def test_mars2_gets_the_rewards_of_programs(world: World) -> None:
    """A program has no sibling: r' = r; its repair: r' = r + α (r − r of the program)."""
    shaped = np.stack([R1, R2 + 0.5 * (R2 - R1)], 1)
    spread = shaped.std(1, ddof=1, keepdims=True)
    expected = (shaped - shaped.mean(1, keepdims=True)) / np.where(spread == 0, 1, spread)
    expect(lesson(group(world), "mars2"), *expected.T)


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "sage-skill", "mars2"])
def test_a_path_with_a_place_that_could_not_be_scored_takes_no_part(
    world: World, name: str
) -> None:
    """Never a reward of 0: the group is what it is without that path."""
    broken = group(world, [*CHAINS, (None, 1.0, 1.0)])
    learned, whole = lesson(broken, name), lesson(broken[:4], name)
    assert parts(learned) == parts(whole) and len(parts(learned)) == 4
    assert np.isnan(learned.credits[0].advantages.leaf_G_L[4]).all()


def test_an_estimator_of_leaves_alone_keeps_such_a_path(world: World) -> None:
    assert len(parts(lesson(group(world, [*CHAINS, (None, 1.0, 1.0)]), "grpo"))) == 5


# -- a run --


@dataclass(frozen=True)
class TwoTasks(Growing):
    """A tree policy of two tasks in a row per path; the end of the first is scored, and no leaf."""

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
        growth.end(
            await growth.run(
                Expansion(Branch(*_place(first.leaf), 0), upto(growth.view.sampling, 4))
            )
        )


def _place(leaf: Leaf) -> tuple[bytes, int]:
    return leaf.segment, leaf.end


def reward(completion: str, **row: Any) -> float:
    """Return the reward of a scorer that a recipe may name."""
    return 1.0


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "sage-skill", "mars2"])
def test_a_recipe_whose_policy_scores_places_is_taken(name: str) -> None:
    recipe = {
        "name": "r",
        "model": "m",
        "task": {"name": "arithmetic"},
        "optimise": {"advantage": name},
    }
    scorers = [{"name": f"{__name__}:reward"}]
    resolved = resolve(recipe | {"generate": {"policy": f"{__name__}:TwoTasks"}, "filter": scorers})
    assert resolved.optimise.advantage == name
    with pytest.raises(InvalidInput, match="needs a reward"):
        resolve(recipe | {"optimise": {"advantage": "sage-skill"}, "filter": scorers})


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "sage-skill", "mars2"])
def test_a_tree_policy_that_scores_places_trains_on_them(world: World, name: str) -> None:
    tree_spec = world.forge.spec(generate_json='{"name": "two"}')
    run = Run(world, tree_spec)
    run.tell(run.grower.start())
    run.engine_steps()
    firsts = list(run.grower.leaves)
    assert len(firsts) == 2 and run.grower.lacks_scores
    for place, value in zip(firsts, (1.0, 0.0), strict=True):
        world.ingest(score(world.forge, tree_spec.tree_id, place, value))
    (tree,) = world.database.query(lambda c: trees.read(c, [tree_spec.tree_id]))
    run.tell(run.grower.scored(scores.from_wire(tree.scores)))
    run.engine_steps()
    leaves = [leaf for leaf in run.grower.leaves if leaf not in firsts]
    assert run.inside == tuple(sorted(firsts)), "the end of growth names them"
    for leaf, value in zip(leaves, (1.0, 0.5), strict=True):
        world.ingest(score(world.forge, tree_spec.tree_id, leaf, value, used=1.0))
    assert world.one(schema.trees).state == CLOSED and not world.rows(schema.parked)
    (tree,) = world.database.query(lambda c: trees.read(c, [tree_spec.tree_id]))
    (scored,) = from_store.by_group([tree], [tree_spec.group_id])[0][1]
    assert scored.rewards == {
        **dict(zip(firsts, (1.0, 0.0), strict=True)),
        **dict(zip(leaves, (1.0, 0.5), strict=True)),
    }
    assert scored.leaves == leaves and scored.facts.rewards == dict(
        zip(firsts, (1.0, 0.0), strict=True)
    )
    learned = parts(lesson([tree], name))
    assert len(learned) == 2 and learned[0][0] > 0 > learned[1][0], (
        "the first task that was right, against the one that was not"
    )


class Run:
    """A node's part of a tree; its grower's steps reach the store as they would over the log."""

    def __init__(self, world: World, tree_spec: tree_pb2.TreeSpec) -> None:
        self.world, self.spec = world, tree_spec
        self.epoch = world.open(tree_spec)
        settings = replace(spec(f"{__name__}:TwoTasks", {}, 8), tree_id=tree_spec.tree_id)
        self.engine = build(dict(ENDLESS), PolicyVersion(1, 0, blake(b"policy")), 64)
        self.grower = Grower(
            settings, Tree(tree_spec.tree_id), self.engine.tokenizer, "node-1", self.epoch
        )

    def engine_steps(self) -> None:
        while self.grower.in_flight:
            self.tell(self.grower.ended(self.engine.step()))

    def tell(self, step: GrowthStep) -> None:
        for request in step.requests:
            self.engine.submit(request)
        forge, run_id, tree_id = self.world.forge, self.spec.run_id, self.spec.tree_id
        events = [
            events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=self.epoch)
            for s in step.segments
        ]
        items = [
            forge.item(
                "segment",
                events_pb2.SegmentsGrown(run_id=run_id, node_id="node-1", segments=events),
            )
        ]
        items += [
            forge.item("leaf", messages.leaf(run_id, tree_id, self.epoch, m, "text").message)
            for m in step.leaves
        ]
        if step.grown is not None:
            growth_end = messages.grown(
                run_id, "node-1", tree_id, self.epoch, step.grown, inside=step.inside
            )
            items.append(forge.item("grown", growth_end.message))
        self.inside = step.inside
        self.world.ingest(*items)
