"""One reward rule: every computation of a reward from the same scores gives the same bits, in
whatever order the scores came.
"""

import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from banyan import reward
from banyan.tree import Leaf
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.node_advantages import view_of
from banyan.wire.segments import rewards_from_wire
from services.learner.data import from_store
from services.learner.server import grouped
from services.treestore.control import growth_budgets, progress
from services.treestore.queries import export, group_outcomes, trees
from services.treestore.storage import schema
from services.treestore.training import batches
from services.treestore.training.replay import buffer
from services.treestore.unit_of_work.completion import owed
from services.treestore.unit_of_work.rows import CLOSED, LeafRow, ScoreRow
from tests.treestore.forge import World

SCORERS = ("a", "b", "c", "d")
AWKWARD = [0.1, 0.2, 0.3, 0.7, 1e16, -1e16, 1.0, 1 / 3, 5e-324]
"""Values whose sum in floats depends on the order."""


def test_the_order_of_these_values_does_change_a_sum() -> None:
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1 and (1e16 + 1.0) - 1e16 != 1e16 - 1e16 + 1.0


# In one order their sum is beyond floats, in another it is not.
LARGE = [
    -1.2762181949692318e308,
    -1.360694322351082e308,
    1.3254213578393808e308,
    1.1613006960320896e308,
    -0.94,
    -0.39,
]


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6), st.randoms()
)
@example([1.7e308, 1.7e308], random.Random(0))
@example([sys.float_info.max / 3] * 3, random.Random(0))
@example([sys.float_info.max] * 5, random.Random(0))
@example([-sys.float_info.max / 6] * 6, random.Random(0))
@example(LARGE, random.Random(0))
@example(LARGE, random.Random(3))
def test_a_mean_is_the_same_in_any_order_and_never_beyond_its_values(
    values: list[float], rng: random.Random
) -> None:
    mixed = list(values)
    rng.shuffle(mixed)
    result = reward.mean(values)
    assert math.isfinite(result) and result == reward.mean(mixed)
    slack = 1e-12 * max(map(abs, values))
    assert min(values) - slack <= result <= max(values) + slack


def _closed(
    world: World,
    ordinal: int,
    values: Sequence[Sequence[float]],
    rng: random.Random,
    weights: Mapping[str, float] = reward.EQUAL,
) -> tree_pb2.TreeSpec:
    """Ingest a tree with a leaf for each list of values, one for each scorer; scores come in any
    order, most before growth ends.
    """
    forge = world.forge
    # All is drawn before anything is stored: Hypothesis may end an example at any draw, and a tree
    # that was begun would be among those of the next.
    scorers = rng.sample(SCORERS, len(SCORERS))
    order = rng.sample(range(len(values) * len(SCORERS)), len(values) * len(SCORERS))
    in_order = [weights[scorer] for scorer in scorers] if weights else []
    spec = forge.spec(ordinal, scorers=scorers, scorer_weights=in_order)
    epoch, root = world.open(spec), forge.root(spec)
    ends = [forge.child(root, number) for number in range(len(values))]
    world.ingest(
        forge.segments(root, *ends, epoch=epoch), *(forge.leaf(end, epoch=epoch) for end in ends)
    )
    scores = [
        forge.score(end, value, scorer=scorer)
        for end, leaf_values in zip(ends, values, strict=True)
        for scorer, value in zip(SCORERS, leaf_values, strict=True)
    ]
    scores = [scores[place] for place in order]
    for item in scores[:-1]:
        world.ingest(item)
    _while_growing(world, spec)
    world.ingest(forge.grown(spec.tree_id, *ends, epoch=epoch), scores[-1])
    return spec


def _while_growing(world: World, spec: tree_pb2.TreeSpec) -> None:
    """Check that control sees the rewards that are known before the tree is grown, by the same
    rule.
    """
    request = rs.ReadRoomsRequest(run_id=world.forge.run_id, block=1)
    (fact,) = world.database.query(lambda c: growth_budgets.facts(c, request, world.now()))
    (tree,) = world.database.query(lambda c: trees.read(c, [spec.tree_id]))
    assert rewards_from_wire(fact.scores, len(SCORERS)) == rewards_from_wire(
        tree.scores, len(SCORERS)
    )


def _expected(values: list[float], weights: tuple[float, ...]) -> float:
    """Return a leaf's reward, by another path than the rule's own where weights differ."""
    if len(set(weights) - {0.0}) <= 1:
        return reward.mean([v for i, v in enumerate(values) if not weights or weights[i]])
    terms = zip(map(Fraction, weights), map(Fraction, values), strict=True)
    return float(sum(w * v for w, v in terms) / sum(Fraction(w) for w in weights if w > 0))


_values = st.lists(
    st.lists(st.sampled_from(AWKWARD), min_size=4, max_size=4), min_size=1, max_size=3
)


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    values=_values,
    rng=st.randoms(use_true_random=False),
    weights=st.sampled_from(
        [(), (2.0, 1.0, 0.5, -0.25), (3.0, 3.0, 3.0, 3.0), (1.0, 0.0, 1.0, 1.0)]
    ),
)
def test_all_who_compute_a_reward_get_the_same_bits(
    world: World, values: list[list[float]], rng: random.Random, weights: tuple[float, ...]
) -> None:
    ordinal = len(world.rows(schema.trees))
    by_scorer = dict(zip(SCORERS, weights, strict=False))
    spec = _closed(world, ordinal, values, rng, by_scorer)
    row = world.one(schema.trees, tree_id=spec.tree_id)
    assert row.state == CLOSED
    (tree,) = world.database.query(lambda c: trees.read(c, [spec.tree_id]))
    expected = {
        Leaf(segment.id, len(segment.tokens) // 4): _expected(leaf_values, weights)
        for segment, leaf_values in zip(tree.segments[1:], values, strict=True)
    }
    trained = from_store.scored_tree(tree)
    assert trained.rewards == expected and trained.leaves == list(expected)
    ((_, (estimated,)),) = grouped([tree])
    assert estimated.rewards == expected
    assert view_of(tree).rewards_L.tolist() == list(expected.values())
    nodes = json.loads(export.line(tree))["nodes"]
    assert [leaf["reward"] for node in nodes for leaf in node["leaves"]] == list(expected.values())
    assert row.mean_reward == reward.mean(list(expected.values()))
    commit = ts.CommitBatchRequest(
        run_id=world.forge.run_id,
        ordinal=ordinal,
        learner_epoch=1,
        use="train",
        group_ids=[spec.group_id],
    )
    world.database.transact(lambda c: batches.commit(c, commit, world.now(), world.settings))
    request = rs.ReadOutcomesRequest(
        run_id=world.forge.run_id, first_batch=ordinal, before_batch=ordinal + 1
    )
    (outcome,) = world.database.query(lambda c: group_outcomes.read(c, request)).groups
    assert list(outcome.rewards) == list(expected.values())
    replayed = ts.SampleReplayRequest(
        run_id=world.forge.run_id, first_batch=ordinal, before_batch=ordinal + 1
    )
    (stored,) = world.database.query(lambda c: buffer.stored(c, replayed))
    assert stored.rewards == tuple(expected.values())


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
@pytest.mark.parametrize("values", [(1e16, 1.0, -1e16), (1.0, 1e16, -1e16), (1e16, -1e16, 1.0)])
def test_the_sum_of_a_tree_is_exact_in_any_order(world: World, values: tuple[float, ...]) -> None:
    _closed(world, 0, [[value] * 4 for value in values], random.Random(0))
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    assert read.samples.reward_sum == 1.0


def test_one_unscorable_word_leaves_no_reward_and_a_missing_one_no_entry() -> None:
    scored = [("x", "a", 1.0), ("x", "b", None), ("y", "a", 1.0), ("z", "b", 0.5), ("z", "a", 0.25)]
    assert reward.rewards(scored, 2) == {"x": None, "z": 0.375}
    assert reward.rewards(reversed(scored), 2) == {"z": 0.375, "x": None}


@given(
    st.sets(st.integers(0, 5)),
    st.sets(st.sampled_from(SCORERS)),
    st.sets(st.tuples(st.integers(0, 5), st.sampled_from(SCORERS))),
)
def test_what_is_owed_is_every_pair_without_a_score_once(
    ends: set[int], scorers: set[str], pairs: set[tuple[int, str]]
) -> None:
    leaves = {Leaf(b"s", end): LeafRow(finished=True, listed=True) for end in ends}
    scores = {(Leaf(b"s", end), scorer): ScoreRow(1, 0.0, "", "") for end, scorer in pairs}
    result = owed(leaves, sorted(scorers), scores)
    assert len(result) == len(set(result))
    assert {(leaf.end, scorer) for leaf, scorer in result} == {
        (end, scorer) for end in ends for scorer in scorers if (end, scorer) not in pairs
    }
