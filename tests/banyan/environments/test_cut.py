"""Long answers: a path gets their first and last halves."""

from hypothesis import given
from hypothesis import strategies as st

from banyan.environments.cut import cut


@given(st.text(max_size=60), st.integers(0, 60))
def test_a_cut_keeps_both_ends_and_its_length(text: str, most: int) -> None:
    short = cut(text, most)
    assert len(short) <= most or short == text
    assert (short == text) == (len(text) <= most)
    kept = (most - len("\n[…]\n")) // 2
    if len(text) > most and kept > 0:
        assert short.startswith(text[:kept]) and short.endswith(text[-kept:])
