"""A planner that gets the news equals the plan of the whole tree after each event."""

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.draws import Draws, key
from banyan.plugins import Branch, Expansion, GrowthBudget, GrowthView, News, Plan, Repaired
from banyan.segment import Finish, Kind, Origin, Sampling, Segment
from banyan.signals import Signals
from banyan.tree import Leaf, Tree
from methods.generate.treepo import budget, endings
from services.rollout.growth.grower import Grower
from tests.methods.generate.forests import EAGER, EPTREE, POLICIES, ROSE, TREE_GRPO, Signalling
from tests.rollout.growing import ENDING, engine, grow, shape, spec, survivors

SETTINGS = {
    "eptree": POLICIES[EPTREE],
    "tree-grpo": POLICIES[TREE_GRPO],
    "rose": POLICIES[ROSE],
    "treepo-eager": POLICIES[EAGER],
    "iid": st.fixed_dictionaries({"width": st.integers(1, 6)}),
    "turns": st.fixed_dictionaries({"starts": st.integers(1, 6)}),
    "dars": st.fixed_dictionaries({"width": st.integers(1, 5), "max_width": st.integers(5, 12)}),
    "scope": st.fixed_dictionaries(
        {"width": st.integers(1, 5), "most": st.integers(1, 3), "least": st.just(0.2)}
    ),
    "rounds": st.fixed_dictionaries({"start": st.integers(2, 4), "most": st.integers(4, 9)}),
    "treepo": st.fixed_dictionaries(
        {
            "segment": st.integers(1, 5),
            "max_depth": st.integers(1, 6),
            "width": st.integers(1, 11),
            "divisor": st.integers(1, 4),
            "budget": st.sampled_from(budget.POLICIES),
            "fallback": st.sampled_from(endings.CUTS),
        }
    ),
    "echo": st.fixed_dictionaries(
        {
            "width": st.integers(1, 9),
            "chains": st.integers(1, 4),
            "segment": st.integers(1, 9),
            "top": st.just(5),
            "max_branches": st.integers(1, 5),
            "min_depth": st.integers(1, 3),
            "cut": st.booleans(),
            "rise": st.sampled_from([-9.0, 0.0]),
            "group_window": st.integers(1, 3),
            "tail_window": st.sampled_from([2, 4]),
            "confidence_k": st.integers(1, 3),
            "cut_confidence": st.sampled_from([0.15, 0.3, 0.5]),
        }
    ),
    "arrol": st.fixed_dictionaries(
        {
            "width": st.integers(1, 7),
            "detect": st.integers(1, 9),
            "keep": st.sampled_from([0.2, 0.5, 1.0]),
        }
    ),
    "ets": st.fixed_dictionaries(
        {
            "width": st.integers(1, 7),
            "step": st.integers(1, 5),
            "delimiter": st.sampled_from(["b", "ab"]),
            "depth": st.integers(1, 5),
            "lambda_b": st.sampled_from([0.0, 1.0]),
            "lambda_d": st.sampled_from([0.0, 1.5]),
        }
    ),
    "latr": st.fixed_dictionaries(
        {
            "width": st.integers(1, 9),
            "chunk": st.integers(1, 7),
            "candidates": st.integers(2, 3),
            "ages": st.sampled_from([[], [1], [2, 4], [3, 5]]),
            "tau_abs": st.just(0.1),
            "tau_rel": st.sampled_from([0.2, 0.6]),
            "preset": st.sampled_from(["math", "countdown"]),
            "force_return": st.integers(1, 14),
            "eta": st.sampled_from([{0: 1.0}, {0: 0.6}, {0: 0.0}]),
        }
    ),
}
ANY = st.sampled_from(sorted(SETTINGS)).flatmap(
    lambda name: st.tuples(st.just(name), SETTINGS[name])
)
SEEDS = st.integers(0, 10**6)
RANDOMS = SEEDS.map(random.Random)
MOST, EVERY = 14, GrowthBudget(final=True)


def test_every_policy_with_a_planner_is_here():
    policies = {name: registry.find("generate", name) for name in registry.names("generate")}
    assert {name for name, policy in policies.items() if hasattr(policy, "planner")} == set(
        SETTINGS
    )


@dataclass
class World:
    """Engine that answers expansions with facts drawn from their branch alone, cut anywhere.

    Missing parts of a resumed tree are sampled again, the same.
    """

    seed: int
    tree: Tree = field(default_factory=lambda: Tree(b"tree"))
    leaves: dict[Leaf, str] = field(default_factory=dict)
    rewards: dict[Leaf, float | None] = field(default_factory=dict)
    repairs: dict[Leaf, Repaired] = field(default_factory=dict)

    def __post_init__(self):
        self.tree.add(Segment(b"tree", b"", 0, 0, Kind.PROMPT, np.array([1, 2])))
        actual = self.leaves, self.rewards, Sampling(max_new_tokens=MOST), self.repairs
        self.view = GrowthView(self.tree, self.seed, MOST, set(), *actual)

    def answer(self, expansion: Expansion) -> list[Segment]:
        """Add the segments of an expansion to the tree: of forced tokens, and of sampled ones."""
        branch, created = expansion.branch, list[Segment]()
        draw = random.Random(key(self.seed, "world", branch.parent, branch.fork, branch.ordinal))
        if expansion.forced:
            ends = draw.random() < 0.1
            finish = Finish.STOP if ends else Finish.BOUNDARY
            created.append(
                self._segment(branch, expansion, list(expansion.forced), finish, draw, Kind.FORCED)
            )
            if ends or draw.random() < 0.3:  # of what followed, a crash left nothing
                return self._added(created)
            branch = Branch(created[0].id, len(created[0]), 0)
        most = expansion.sampling.max_new_tokens
        count = most if draw.random() < 0.6 else draw.randint(1, most)
        finish = (
            Finish.BOUNDARY
            if count == most
            else draw.choice([Finish.STOP, Finish.STOP, Finish.ABORTED])
        )
        created.append(
            self._segment(
                branch, expansion, [draw.randint(1, 3) for _ in range(count)], finish, draw
            )
        )
        return self._added(created)

    def _added(self, made):
        for segment in made:
            self.tree.add(segment)
        return made

    def _segment(self, at, expansion, tokens, finish, draw, kind=Kind.POLICY):
        count, top = len(tokens), expansion.signals.top
        p = np.array(
            [sorted(draw.choices([0.02, 0.1, 0.2, 0.4], k=top), reverse=True) for _ in tokens]
        ).reshape(count, top)
        return Segment(
            *(b"tree", at.parent, at.fork, at.ordinal, kind, np.array(tokens)),
            logprobs_T=np.array([draw.choice([-0.1, -1.0, -2.0]) for _ in tokens]),
            origin=expansion.origin if kind is Kind.FORCED else Origin.NONE,
            sampling=expansion.sampling,
            finish=finish,
            text="".join(draw.choice("ab") for _ in tokens),
            signals=Signals(
                np.tile(np.arange(1, top + 1), (count, 1)) if top else np.zeros((0, 0)),
                np.log(p) if top else np.zeros((0, 0)),
                np.array(
                    [draw.choice([-0.5, 0.0, 0.5]) for _ in tokens if expansion.signals.semantic]
                ),
                np.array([draw.choice([0.1, 0.5, 0.9]) for _ in tokens if expansion.signals.head]),
            ),
        )

    def reward(self, leaf: Leaf) -> float | None:
        return random.Random(key(self.seed, "reward", leaf.segment, leaf.end)).choice(
            [0.0, 0.0, 1.0, None]
        )

    def score(self, leaf: Leaf) -> None:
        """Return a leaf's reward, and for a wrong one a repair somewhere on its path, or none."""
        self.rewards[leaf] = self.reward(leaf)
        draw = random.Random(key(self.seed, "repair", leaf.segment, leaf.end))
        if self.rewards[leaf] == 0.0 and draw.random() < 0.8:
            segment, end = draw.choice(self.tree.pieces(leaf.segment, leaf.end)[1:])
            steps = draw.randint(1, 4)
            forced = tuple(draw.randint(1, 3) for _ in range(draw.randint(1, 3)))
            place = Leaf(segment.id, draw.randint(0, end))
            self.repairs[leaf] = Repaired(place, forced, draw.randint(1, steps), steps)

    def resumed(self, rng: random.Random) -> "World":
        """Return a part of the tree that a store may have."""
        repeated = World(self.seed)
        for segment in survivors(self.tree, rng):
            repeated.tree.add(segment)
        repeated.rewards |= {
            leaf: value
            for leaf, value in self.rewards.items()
            if leaf.segment in repeated.tree.segments
        }
        repeated.repairs |= {
            leaf: item for leaf, item in self.repairs.items() if leaf in repeated.rewards
        }
        return repeated


@dataclass
class Heard:
    """Sum of a planner's plans."""

    asked: dict[Branch, Expansion] = field(default_factory=dict)
    marks: dict[Leaf, str] = field(default_factory=dict)
    dropped: set[Leaf] = field(default_factory=set)

    def hear(self, plan: Plan) -> None:
        new = {e.branch: e for e in plan.expansions}
        assert len(new) == len(plan.expansions) and not set(new) & set(self.asked), (
            "nothing is asked for twice"
        )
        self.asked |= new
        for mark in plan.leaves:
            assert mark.leaf not in self.marks, "nothing is marked twice"
            self.marks[mark.leaf] = mark.reason
        assert self.dropped.isdisjoint(plan.dropped) and set(plan.dropped) <= set(self.marks)
        self.dropped |= set(plan.dropped)

    def is_all_of(self, plan: Plan, said: Plan, world: World) -> None:
        """Return whether it equals the plan of the whole tree."""
        at = world.tree.at
        lacking = {b: e for b, e in self.asked.items() if at(b.parent, b.fork, b.ordinal) is None}
        assert lacking == {e.branch: e for e in plan.expansions}
        assert self.marks == {mark.leaf: mark.reason for mark in plan.leaves}
        assert said.done == plan.done and self.dropped == set(plan.dropped)


def grown(name, of, seed, rng, room=EVERY):
    """Grow a tree by a planner with crashes, and compare it with a new plan after each event."""
    policy, world = registry.build("generate", name, of), World(seed)
    needs_scores = getattr(policy, "needs_scores", False)
    planner = None
    heard = Heard()
    news = News()
    events = 0
    while True:
        if planner is None:
            planner, heard, news = policy.planner(world.view, room, Draws(seed)), Heard(), News()
        output = planner.plan(news)
        heard.hear(output)
        world.leaves |= heard.marks
        whole = [policy.plan(world.view, room, Draws(seed)) for _ in range(2)]
        assert whole[0] == whole[1]
        heard.is_all_of(whole[0], output, world)
        if output.done:
            return heard, world
        events += 1
        assert events < 5000, "the tree is never grown"  # with segments of one token some take 600
        if rng.random() < 0.03:
            world, planner = world.resumed(rng), None
            continue
        flying = [
            e
            for e in heard.asked.values()
            if world.tree.at(e.branch.parent, e.branch.fork, e.branch.ordinal) is None
        ]
        ended = rng.sample(flying, rng.randint(min(1, len(flying)), min(3, len(flying))))
        gone = [e.branch for e in ended if rng.random() < 0.1]
        created = [segment for e in ended if e.branch not in gone for segment in world.answer(e)]
        for branch in gone:  # it must be asked for again
            del heard.asked[branch]
        scored = [
            f for f in heard.marks if needs_scores and f not in world.rewards and rng.random() < 0.5
        ]
        for leaf in scored:
            world.score(leaf)
        news = News(created, scored, gone)


@pytest.mark.parametrize("name", sorted(SETTINGS))
@settings(max_examples=60, deadline=None)
@given(st.data(), SEEDS, RANDOMS)
def test_after_each_event_a_planner_has_said_what_a_new_plan_says(name, data, seed, rng):
    grown(name, data.draw(SETTINGS[name]), seed, rng)


@settings(max_examples=50, deadline=None)
@given(ANY, SEEDS, RANDOMS, st.integers(0, 5), st.integers(0, 300))
def test_a_planner_keeps_to_its_room(policy, seed, rng, most, step):
    heard, _ = grown(*policy, seed, rng, GrowthBudget(most, step, final=True))
    assert len(heard.marks) - len(heard.dropped) <= max(
        most, policy[1].get("max_width", 0), policy[1].get("start", 0)
    )


@settings(max_examples=60, deadline=None)
@given(ANY, SEEDS)
def test_a_policy_that_has_a_plan_alone_grows_the_same_tree(policy, seed):
    if policy[0] in ("dars", "rounds", "scope"):
        return  # they wait for scores, and for room
    given_spec = spec(*policy, 12, seed)

    class PlanAlone:
        def plan(self, view, room, rng):
            return given_spec.tree_policy.plan(view, room, rng)

    whole, _ = grow(given_spec, Signalling(engine(ENDING)))
    alone, _ = grow(replace(given_spec, tree_policy=PlanAlone()), Signalling(engine(ENDING)))
    assert shape(alone) == shape(whole)


def test_the_order_of_leaves_does_not_tell_which_ended_first():
    given_spec = spec("iid", {"width": 9}, 12)
    orders = {tuple(leaves_in_order(given_spec, most)) for most in (1, 2, 9)}
    assert len(orders) == 1


def leaves_in_order(given_spec, most):
    item = engine(ENDING, max_branches=most)
    grower = Grower(given_spec, Tree(given_spec.tree_id), item.tokenizer, "test")
    step = grower.start()
    while step.grown is None:
        for request in reversed(step.requests):
            item.submit(request)
        step = grower.ended(item.step())
    return step.grown


def test_a_policy_cannot_change_its_view():
    given_spec = spec("iid", {"width": 3}, 12)
    grower, _ = grow(given_spec, engine(ENDING), most_steps=2)
    for shown in (grower._view.leaves, grower._view.rewards):
        with pytest.raises(TypeError):
            shown[Leaf(b"", 0)] = ""
    assert not hasattr(grower._view.in_flight, "add") and len(grower._view.in_flight) == len(
        grower.in_flight
    )
