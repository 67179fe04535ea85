"""echo's numbers by the formulas of ECHO, arXiv 2602.02150."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods.generate.echo import confidence
from methods.generate.echo.confidence import Cuts, Profile, Width, entropy_and_confidence, profile


def made(entropy=(), group=(), tail=(), rise=()):
    """Return a profile by hand, calm by default."""
    n = max(map(len, (entropy, group, tail, rise)))
    actual = ((entropy, 0), (group, 9), (tail, 9), (rise, 0))
    return Profile(
        *(np.array(values if len(values) else np.full(n, calm), float) for values, calm in actual)
    )


VALUES = st.lists(st.floats(0.0, 9.0) | st.sampled_from([0.0, 0.5]), min_size=1, max_size=20)


@given(VALUES, st.integers(1, 9))
def test_windows_end_at_their_token_and_equal_ones_have_equal_means(values, window):
    path = profile(np.zeros(len(values)), np.array(values), window, window, window)
    parts = [values[max(0, t + 1 - window) : t + 1] for t in range(len(values))]
    assert (
        path.group_T.tolist()
        == path.tail_T.tolist()
        == [in_turn(part) / len(part) for part in parts]
    )


def in_turn(values):
    total = 0.0
    for value in values:
        total += value
    return total


@given(VALUES, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3))
def test_quantiles_are_those_of_numpy_to_the_last_bit(values, levels):
    assert confidence.quantiles(np.array(values), levels) == np.quantile(values, levels).tolist()


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_a_rule_that_must_hold_for_some_tokens_holds_at_the_last_of_them(holds, times):
    result = confidence._in_a_row(np.array(holds, bool), times)
    assert result.tolist() == [
        t + 1 >= times and all(holds[t + 1 - times : t + 1]) for t in range(len(holds))
    ]


def test_the_width_of_a_branch():
    width = Width()
    assert width.at(3.5, 1.2) == 3
    assert width.at(3.5, 0.6) == 4  # 3.5 is rounded to even
    assert width.at(2.0, 1.2) == 2  # 1.8
    assert width.at(0.0, 1.2) == 1 and width.at(9.0, 1.2) == 4  # its bounds
    assert width.at(3.5, 2.4) == 2  # confidence takes away


def test_a_scale_without_a_span_gives_the_most_above_it_and_the_least_on_it():
    width = Width(entropy_high=0.0, entropy_low=0.0, confidence=0.2)
    assert width.at(0.7, 0.2) == 4 and width.at(0.0, 0.2) == 1


def test_entropy_and_confidence_are_of_the_likeliest_tokens_renormalised():
    p = np.array([[0.4, 0.2, 0.2], [0.8, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        h, c = entropy_and_confidence(np.log(p), 2, "mean_probability")
        _, logs = entropy_and_confidence(np.log(p), 2, "neg_mean_log")
    assert h == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(4), 0.0], abs=1e-6)
    assert c == pytest.approx([(0.5 + 0.25) / 2, 0.5])
    assert logs == pytest.approx([(math.log(2) + math.log(4)) / 2, -math.log(1e-9) / 2])


def test_windows_end_at_their_token():
    path = profile(
        np.array([1.0, 3.0, 2.0, 6.0]), np.array([4.0, 2.0, 0.0, 1.0]), group=2, tail=3, before=2
    )
    assert path.group_T == pytest.approx([4, 3, 1, 0.5])
    assert path.tail_T == pytest.approx([4, 3, 2, 1])
    assert path.rise_T == pytest.approx([0, 2, 0, 3.5])  # 2 − (1 + 3)/2, 6 − (3 + 2)/2
    assert len(path) == 4 and path.first(2).rise_T == pytest.approx([0, 2])


def test_what_stays_equal_does_not_fall():
    for level in (0.1, 0.15, 1 / 7):
        path = profile(np.full(500, level), np.full(500, level), 4, 8, 4)
        assert not (np.diff(path.tail_T[8:]) < 0).any() and not path.rise_T[5:].any()


def test_a_chain_branches_at_its_first_uncertain_token():
    width = Width()
    path = made(
        entropy=[4, 4, 3, 4, 4, 4], group=[1, 1, 1, 1.3, 1.2, 1], rise=[1, 0.1, 1, 1, 0.2, 1]
    )
    assert width.first(path, 0, 6) == 0
    assert width.first(path, 1, 6) == 4  # 1 does not rise, 2 is sure, 3 is confident
    assert width.first(path, 1, 4) is None


def test_published_thresholds_cannot_fire_and_those_of_a_chain_can():
    rng = np.random.default_rng(0)
    top = np.sort(rng.gumbel(size=(400, 10)) * 3, axis=1)[:, ::-1]
    for logprobs in (top, np.zeros((400, 10))):
        h, c = entropy_and_confidence(logprobs, 5, "neg_mean_log")
        path = profile(h, c, 4, 8, 4)
        assert h.max() <= math.log(10) + 1e-6 and c.min() >= math.log(5) - 1e-6
        assert Width().first(path, 0, 400) is None and not (path.group_T < Cuts().confidence).any()
    h, c = entropy_and_confidence(top, 5, "mean_probability")
    path = profile(h, c, 4, 8, 4)
    own = Width(
        float(np.quantile(h, 0.9)),
        float(np.quantile(h, 0.5)),
        float(np.quantile(path.group_T, 0.5)),
    )
    assert own.first(path, 4, 400) is not None


@pytest.mark.parametrize(
    "path,cut",
    [
        (made(group=[0.5, 0.4, 0.39, 0.1]), (2, "low_confidence")),
        (made(tail=[1.3, 1.2, 1.1, 1.0, 0.9]), (3, "tail_decline")),
        (made(tail=[1.4, 1.3, 1.2, 1.1, 1.1]), None),  # it stops to fall
        (made(tail=[0.9, 0.8, 0.7, 0.7]), None),
        (made(rise=[0.1, 0.1, 0.6, 0.1]), (2, "entropy_spike")),
        (made(rise=[0.9, 0.0, 0.9, 0.9, 0.5]), None),
        (made(rise=[0.0, 0.1, 0.1, 0.5, 0.6]), (4, "entropy_spike")),
        (
            made(group=[9, 9, 0.3], rise=[0.6, 0.6, 0.6]),
            (2, "low_confidence"),
        ),  # in the published order
        (made(), None),
    ],
)
def test_paths_are_cut_by_three_rules(path, cut):
    assert Cuts().first(path) == cut


def test_no_path_is_cut_at_its_start():
    path = made(group=[0.1, 0.1, 9, 0.3], rise=[0.6, 0.6, 0.6, 0.0])
    assert [Cuts(start=start).first(path) for start in (0, 2, 3)] == [
        (0, "low_confidence"),
        (2, "entropy_spike"),
        (3, "low_confidence"),
    ]


def test_confidence_needs_no_more_tokens_than_there_are():
    _, c = entropy_and_confidence(np.log([[0.5, 0.5]]), 5, confidence.MEASURES[0])
    assert c == pytest.approx([0.5])
