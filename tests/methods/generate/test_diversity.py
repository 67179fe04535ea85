"""Effect of the place of forks on the variety of a tree, and the bench's arithmetic.

Models are scripted, with known answers.
"""

import numpy as np
import pytest

from bench.diversity import POLICIES, compare, spread, table, within
from bench.harness.forest import Answer, Grown
from methods.generate.latr.similarity import edit_distance
from tests.rollout.growing import engine, grow, spec

LEAVES = 16
FORKED = {
    "treepo": {"width": LEAVES, "segment": 8, "max_depth": 8},
    "echo": {"width": LEAVES, "chains": 1, "segment": 8, "min_depth": 1},
    "eptree": {"chains": 4, "forks": 1, "rounds": 1, "continuations": 3},
}


def endings(policy: str, seed: int) -> tuple[int, int]:
    """Return different answers of a tree of 16 leaves, and its sampled tokens.

    One token of 32 is a choice.
    """
    grower, done = grow(spec(policy, FORKED[policy], 64, seed), engine({"toy": "one_fork"}))
    assert done and len(grower.leaves) == LEAVES
    sampled = sum(len(s) for s in grower.tree.segments.values() if s.kind == 2)
    return len({grower.completion(leaf)[-1] for leaf in grower.leaves}), sampled


def test_with_one_fork_of_high_entropy_echo_and_eptree_beat_treepo():
    """TreePO's fixed segments have 8 paths at the fork, so 8 of its 16 leaves repeat the others.

    The other policies fork at it.
    """
    result = {
        policy: np.mean([endings(policy, seed) for seed in range(12)], axis=0) for policy in FORKED
    }
    assert (
        result["echo"][0] > result["treepo"][0] + 2
        and result["eptree"][0] > result["treepo"][0] + 2
    ), result
    assert all(endings("treepo", seed)[0] <= 8 for seed in range(12))


def test_latr_beats_iid_on_the_reconverging_model_at_equal_leaves_and_tokens():
    latr, iid = {"width": 8, "preset": "countdown", "chunk": 8, "ages": [10]}, {"width": 8}
    rows = []
    for seed in range(6):
        trees = [
            grow(spec(n, s, 128, seed), engine({"toy": "reconverging"}))[0]
            for n, s in (("latr", latr), ("iid", iid))
        ]
        texts = [[tree.completion(leaf).strip() for leaf in tree.leaves] for tree in trees]
        spent = [sum(len(s) for s in tree.tree.segments.values() if s.kind == 2) for tree in trees]
        rows.append(
            [len({text[-1] for text in texts[0]}), len({text[-1] for text in texts[1]}), *spent]
        )
    latr_found, iid_found, latr_spent, iid_spent = np.mean(rows, axis=0)
    assert latr_found == 8 > iid_found + 1, rows
    assert latr_spent < iid_spent, rows  # fewer tokens, so it holds at equal tokens, too


ROWDY = {"": dict.fromkeys("abcd", 0.25)} | {
    c: {c: 1.0} for c in "bcd"
}  # four ways; all is open behind the first
ROWDY |= {c: dict.fromkeys("efghijklmnopqrst", 1 / 16) for c in "aefghijklmnopqrst"}


def beginnings(policy: str, settings: dict[str, object], seed: int) -> tuple[int, int]:
    """Return different depth-1 ancestors of a tree's leaves, and its sampled tokens."""
    item = engine({"chain": ROWDY})
    grower, done = grow(spec(policy, settings, 24, seed), item)
    assert done
    first = {grower.tree.lineage(leaf.segment)[1].id for leaf in grower.leaves}
    return len(first), item.stats().sampled_tokens


def test_echo_keeps_more_beginnings_than_branching_by_entropy_alone_at_equal_tokens():
    """One chain has runs of high entropy, and a rule of entropy alone ends up below it (ECHO)."""
    echo = {"width": 16, "chains": 4, "segment": 8, "min_depth": 1}
    alone = {"width": 24, "epsilon": 0.25, "metric": "entropy"}
    rows = [
        (*beginnings("echo", echo, seed), *beginnings("rose", alone, seed)) for seed in range(12)
    ]
    echo_found, echo_spent, alone_found, alone_spent = np.mean(rows, axis=0)
    assert echo_found > alone_found + 2, rows
    assert echo_spent <= alone_spent, rows


def spread_groups(policy: str, settings: dict[str, object], seeds: range) -> list[bool]:
    """Return whether a group has right and wrong leaves, for each ending as the right one."""
    result = []
    for seed in seeds:
        grower, _ = grow(spec(policy, settings, 128, seed), engine({"toy": "reconverging"}))
        ends = [grower.completion(leaf).strip()[-1].lower() for leaf in grower.leaves]
        result += [0 < sum(end == right for end in ends) < len(ends) for right in "hijklmno"]
    return result


def test_with_latr_fewer_groups_have_rewards_that_are_all_equal():
    """LATR, arXiv 2510.24302, claims it."""
    latr = {"width": 8, "preset": "countdown", "chunk": 8, "ages": [10]}
    flat = {
        name: 1 - np.mean(spread_groups(name, of, range(4)))
        for name, of in (("latr", latr), ("iid", {"width": 8}))
    }
    assert flat["latr"] == 0.0 and flat["iid"] > 0.2, flat


def answers(*texts: tuple[tuple[int, ...], object, bool]) -> list[Answer]:
    return [Answer(*text) for text in texts]


def test_the_benchs_spread_of_a_set_of_answers():
    item = spread(
        answers(((1, 2, 3, 4), 7, False), ((1, 2, 3), 7, True), ((9, 9, 9, 9), None, False))
    )
    assert item.distinct == 1 and item.passed == 1.0
    assert item.distance == pytest.approx(
        (1 / 4 + 4 / 4 + 3 * 0 + edit_distance((1, 2, 3), (9, 9, 9, 9)) / 4) / 3
    )
    assert spread(answers(((1,), 1, False))).distance == 0.0


def test_equal_leaves_and_equal_tokens_are_taken_from_the_pool():
    pool = answers(
        ((1,) * 4, 1, False), ((2,) * 4, 2, True), ((3,) * 4, 3, False), ((4,) * 4, 4, False)
    )
    assert [len(within(pool, tokens)) for tokens in (0, 5, 7, 8, 99)] == [1, 1, 2, 2, 4]
    grown = [Grown(answers(((1, 1), 1, False), ((1, 2), 1, False), ((1, 3), 2, False)), 6)]
    cell = compare(grown, [Grown(pool, 16)])
    assert (cell["tree"]["distinct"], cell["leaves"]["distinct"], cell["tokens"]["distinct"]) == (
        2,
        3,
        1,
    )
    assert (cell["tree"]["passed"], cell["leaves"]["passed"], cell["tokens"]["passed"]) == (0, 1, 0)
    assert cell["leaves_at_equal_tokens"] == 1 and cell["short_pools"] == 0 and cell["length"] == 2
    assert compare([Grown(grown[0].answers, 17)], [Grown(pool, 16)])["short_pools"] == 1


def test_the_table_names_every_registered_policy():
    rows = table({}).notes
    from banyan import registry

    assert all(
        name in POLICIES or any(note.startswith(f"{name}: not measured") for note in rows)
        for name in registry.names("generate")
    )
