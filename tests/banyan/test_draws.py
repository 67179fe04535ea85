"""Counter-based draws: keyed, independent of order, uniform."""

import numpy as np

from banyan.draws import Draws, branch_key, key, uniforms


def test_a_draw_depends_on_its_key_alone() -> None:
    keys = np.array([branch_key(7, b"p", 3, i) for i in range(4)], np.uint64)
    positions = np.arange(4, dtype=np.uint64)
    together = uniforms(keys, positions)
    alone = [uniforms(keys[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == alone
    assert len(set(together)) == 4
    assert key(1, "a", b"x") != key(1, "b", b"x") != key(2, "b", b"x")


def test_draws_are_uniform() -> None:
    keys = np.array([key(s, "token", b"n") for s in range(200)], np.uint64).repeat(100)
    values = uniforms(keys, np.tile(np.arange(100, dtype=np.uint64), 200))
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    expected = len(values) / 20
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001
    assert values.min() >= 0.0 and values.max() < 1.0


def test_shuffles_keep_all_items() -> None:
    items = list(range(10))
    first, second = Draws(1).shuffled(items, "x"), Draws(2).shuffled(items, "x")
    assert sorted(first) == items and first == Draws(1).shuffled(items, "x") and first != second
