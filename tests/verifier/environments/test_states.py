"""States that are kept, up to a number of bytes."""

from services.verifier.environments.states import States


def test_states_beyond_their_bytes_are_lost_oldest_use_first() -> None:
    states = States(most=3 * 300)
    for name in (b"a", b"b", b"c"):
        states.put(name, bytes(100))
    assert states.get(b"a") is not None
    states.put(b"d", bytes(100))
    assert states.get(b"b") is None and states.get(b"a") is not None
    states.put(b"e", bytes(10_000))
    assert states.get(b"e") is not None and states.get(b"a") is None


def test_a_state_that_is_put_again_counts_once() -> None:
    states = States(most=3 * 300)
    for name in (b"a", *8 * (b"b",), b"c"):
        states.put(name, bytes(100))
    assert None not in [states.get(name) for name in (b"a", b"b", b"c")]
