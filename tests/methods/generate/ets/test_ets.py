"""ets by numbers (arXiv 2502.13575): REBASE, the integer program by brute force, clusters,
memory."""

import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.generate.ets.clusters import clusters, linked
from methods.generate.ets.rebase import counts, shares, width_left
from methods.generate.ets.select import Choice, exact, greedy, kv_tokens, select

EXAMPLE = [0.9, 0.9, 0.8, 0.7]  # a1, a2, a3 under A, b1 under B
ABOVE = [("root", "A"), ("root", "A"), ("root", "A"), ("root", "B")]
MEANING = ["12", "12", "3", "b"]


def example(cost, bonus=0.0):
    return Choice(shares(EXAMPLE, 8), ABOVE, MEANING, cost, bonus)


def test_rebase_counts_of_the_paper():
    assert counts(EXAMPLE, 8) == [3, 3, 2, 0]
    assert shares(EXAMPLE, 8) == [3 / 8, 3 / 8, 2 / 8, 0]
    assert counts([0.7, 0.9, 0.8, 0.9], 8) == [0, 3, 2, 3], "by score, whatever the order"


def test_the_published_counts_may_exceed_the_width_by_a_rounding_error():
    assert counts([0.9, 0.8, 0.7], 8, slack=0.0) == [5, 2, 2]
    assert counts([0.9, 0.8, 0.7], 8) == [5, 2, 1]


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
    st.integers(0, 300),
    st.sampled_from([1e-4, 0.2, 1.0, 50.0]),
)
def test_counts_add_up_to_the_width_and_follow_the_scores(rewards, width, temperature):
    children = counts(rewards, width, temperature)
    assert sum(children) == width and min(children) >= 0
    first = max(range(len(rewards)), key=lambda i: (rewards[i], -i))
    assert children[first] == max(children) or width == 0


def test_finished_and_long_paths_each_take_one_of_the_width():
    assert width_left(16, [10, 1024, 1023, 2000], [True, False, False, True]) == 13
    assert width_left(1, [5, 5], [True, True]) == 0


@pytest.mark.parametrize(
    "cost,bonus,kept,value",
    [
        (1.0, 0.0, [0, 1, 2], 0.2857),
        (1.0, 1.5, [0, 1, 2, 3], 1.5),
        (1.0, 0.3, [0, 1, 2], 0.4857),
        (2.0, 0.0, [0, 1], 0.75 - 8 / 7),
    ],
)
def test_the_card_s_choices(cost, bonus, kept, value):
    choice = example(cost, bonus)
    assert len(choice.below_M_N) == 3 and select(choice) == kept
    assert choice.value(exact(choice)) == pytest.approx(value, abs=5e-5)
    assert choice.value(greedy(choice)) == pytest.approx(value, abs=5e-5)


def test_at_no_cost_everything_is_kept():
    assert select(example(0.0)) == [0, 1, 2, 3]


def random_choice(rng, count):
    """Draw candidates below a random tree three levels deep."""
    rewards = [rng.random() for _ in range(count)]
    above = [("root", a := rng.randrange(3), (a, rng.randrange(3))) for _ in range(count)]
    named = [rng.randrange(4) for _ in range(count)]
    return Choice(
        shares(rewards, rng.choice([4, 8, 16])),
        above,
        named,
        rng.choice([0, 0.3, 1, 2]),
        rng.choice([0, 0.4, 1.5]),
    )


def brute(choice):
    """Return the highest objective, by the definition with its constraints."""
    count, best = len(choice.worth), -float("inf")
    nodes = sorted({n for path in choice.ancestors for n in path}, key=repr)
    for x in itertools.product((0, 1), repeat=count):
        if not any(x):
            continue
        y = [max(x[i] for i in range(count) if n in choice.ancestors[i]) for n in nodes]
        z = [
            max(x[i] for i in range(count) if choice.clusters[i] == k) for k in set(choice.clusters)
        ]
        cost = choice.cost if choice.cost else -1e-4
        value = sum(o * a for o, a in zip(choice.worth, x, strict=True)) - cost * (
            sum(y) + sum(x)
        ) / (len(nodes) + count)
        best = max(best, value + choice.bonus * sum(z) / len(z))
    return best


@pytest.mark.parametrize("count", range(1, 13))
def test_the_exact_choice_is_what_brute_force_finds(count):
    for seed in range(8 if count < 9 else 1):
        choice = random_choice(random.Random(100 * count + seed), count)
        assert choice.value(exact(choice)) == pytest.approx(brute(choice), abs=1e-9)


def test_the_greedy_fallback_is_seldom_and_little_worse():
    gaps = []
    for seed in range(200):
        choice = random_choice(random.Random(seed), 12)
        best, result = choice.value(exact(choice)), choice.value(greedy(choice))
        assert result <= best + 1e-9 and greedy(choice).any()
        gaps.append(best - result)
    missed = [gap for gap in gaps if gap > 1e-9]
    assert len(missed) <= 0.05 * len(gaps) and sum(gaps) / len(gaps) < 0.005, (
        f"{len(missed)} of {len(gaps)}"
    )


def test_many_candidates_go_to_the_fallback():
    choice = random_choice(random.Random(1), 40)
    kept = select(choice)
    assert kept == np.flatnonzero(greedy(choice)).tolist() and kept


@pytest.mark.parametrize("sizes", [([], [], []), ([1.0], [], []), ([1.0], [("r",)], [1, 2])])
def test_an_incomplete_choice_is_refused(sizes):
    with pytest.raises(ValueError, match="each of at least one candidate needs"):
        Choice(*sizes)


def test_clusters_are_joined_by_their_mean_distance():
    near = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]]
    assert clusters(near) == [0, 0, 0, 1]
    chain = [
        [1.0, 0.0],
        [1.0, 0.3],
        [1.0, 0.7],
    ]  # distances .042, .181 and .063: the last one's mean is .12
    assert (
        clusters(chain) == [0, 0, 1]
        and clusters(chain, cut=0.2) == [0, 0, 0]
        and clusters(chain, cut=0.0) == [0, 1, 2]
    )
    assert clusters([[3.0, 4.0]]) == [0] and clusters([[1.0, 0.0], [5.0, 0.0]]) == [0, 0]


def test_memory_counts_each_node_once():
    paths = [
        [("root", 10), ("A", 5), ("a1", 2)],
        [("root", 10), ("A", 5), ("a2", 3)],
        [("root", 10), ("B", 7)],
    ]
    assert kv_tokens(paths) == 10 + 5 + 2 + 3 + 7


def as_defined(distance, cut):
    """Return average linkage by its definition: all means of two clusters anew after each join."""
    groups = [[i] for i in range(len(distance))]
    while len(groups) > 1:
        pairs = [
            (distance[np.ix_(a, b)].mean(), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
        ]
        least, i, j = min(pairs)
        if least > cut:
            break
        groups[j] += groups.pop(i)
    named = {
        member: number for number, group in enumerate(sorted(groups, key=min)) for member in group
    }
    return [named[i] for i in range(len(named))]


@settings(deadline=None)
@given(
    st.data(),
    st.integers(0, 14),
    st.sampled_from([1, 3, 1 << 20]),
    st.sampled_from([0.1, 0.5, 0.8]),
)
def test_clusters_are_those_of_the_definition(data, many, values, cut):
    """`values` is the number of different distances; few make ties."""
    ints = data.draw(st.lists(st.integers(0, values), min_size=many * many, max_size=many * many))
    half = np.tril(np.array(ints, float).reshape(many, many), -1) / (1 << values.bit_length() - 1)
    assert linked(half + half.T, cut) == as_defined(half + half.T, cut)


def test_many_candidates_are_clustered_while_the_node_waits():
    rng = np.random.default_rng(3)
    given_embeddings = rng.normal(size=(256, 8))
    begun = time.process_time()
    assert max(clusters(given_embeddings, 0.9)) < 255
    assert time.process_time() - begun < 2.0, "20 s by the definition"


@pytest.mark.parametrize("cost", [1e3, 1e6, 1e9])
def test_the_greedy_fallback_ends_whatever_a_node_costs(cost):
    """Rounding of large numbers must not pass for an improvement, back and forth."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        many = int(rng.integers(17, 40))
        above = [["root", f"a{rng.integers(4)}"] for _ in range(many)]
        above = [[*path, f"{path[1]}b{rng.integers(3)}"] for path in above]
        kinds = [int(kind) for kind in rng.integers(0, 6, many)]
        choice = Choice(
            [float(worth) for worth in rng.integers(1, 5, many)],
            above,
            kinds,
            cost,
            float(rng.choice([1.5, 3 * cost])),
        )
        assert greedy(choice).any()
