"""What a run's object store holds: when a whole version is due, what may go, and that it stays within its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from banyan.policy import PolicyVersion
from services.chassis.messaging.object_format import Object
from services.chassis.weights.versions import Link
from services.learner.weights import version_chain
from services.learner.weights.version_chain import KEEP, Sent

WEIGHTS = 1000


def sent(step: int, size: int, whole: bool) -> Sent:
    version, before = (
        PolicyVersion(1, step, bytes([step]) * 32),
        PolicyVersion(1, step - 1, b"p" * 32),
    )
    return Sent(
        Link(version, None if whole else before), Object(version.name, f"n{step}", size, 1, b"")
    )


def test_a_whole_version_is_due_at_the_start_after_so_many_and_when_changes_are_half_of_one() -> (
    None
):
    assert version_chain.change_budget([], WEIGHTS, 4) == 0
    held = [sent(1, 1000, True)]
    assert (
        version_chain.change_budget(held, WEIGHTS, 4) == 500
        and version_chain.change_budget(held, WEIGHTS, 1) == 0
    )
    held += [sent(2, 200, False), sent(3, 250, False)]
    assert (
        version_chain.change_budget(held, WEIGHTS, 4) == 50
        and version_chain.change_budget(held, WEIGHTS, 3) == 0
    )
    held += [sent(4, 1000, True)]
    assert version_chain.change_budget(held, WEIGHTS, 4) == 500


def test_what_the_three_newest_are_built_from_stays() -> None:
    held = [sent(n, 100, n in (1, 4, 6)) for n in range(1, 9)]
    assert [one.link.version.step for one in version_chain.unneeded(held)] == [
        1,
        2,
        3,
        4,
        5,
    ]  # 6, 7, 8 need 6
    assert [one.link.version.step for one in version_chain.unneeded(held[:7])] == [
        1,
        2,
        3,
    ]  # 5, 6, 7 need 4
    assert version_chain.unneeded(held[:2]) == [] and version_chain.unneeded([]) == []


@given(st.lists(st.integers(0, 1200), max_size=60), st.integers(1, 30))
def test_whatever_changes_the_store_stays_within_its_bytes(sizes: list[int], every: int) -> None:
    held: list[Sent] = []
    for step, size in enumerate(sizes):
        room = version_chain.change_budget(held, WEIGHTS, every)
        whole = not room or size > room
        held.append(sent(step % 256, WEIGHTS if whole else size, whole))
        assert (
            sum(one.object.size for one in held)
            <= (KEEP + 1.5) * WEIGHTS
            <= version_chain.limit_bytes(WEIGHTS)
        )
        gone = version_chain.unneeded(held)
        held = [one for one in held if one not in gone]
        assert held[0].whole and len(held) >= min(KEEP, step + 1)
        assert sum(one.object.size for one in held) <= (KEEP + 0.5) * WEIGHTS
