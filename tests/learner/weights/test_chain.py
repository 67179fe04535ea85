"""The versions in a run's object store: due whole ones, removable ones, the bound of its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from banyan.policy import PolicyVersion
from services.chassis.messaging.objects.object_format import Object
from services.chassis.weights.versions import Link
from services.learner.weights import version_chain
from services.learner.weights.version_chain import KEEP, Sent

WEIGHTS = 1000


def sent(step: int, size: int, whole: bool) -> Sent:
    version = PolicyVersion(1, step, bytes([step]) * 32)
    before = None if whole else PolicyVersion(1, step - 1, b"p" * 32)
    return Sent(Link(version, before), Object(version.name, f"n{step}", size, 1, b""))


def steps_of(versions: list[Sent]) -> list[int]:
    return [version.link.version.step for version in versions]


def test_a_whole_version_is_due_first_after_so_many_and_after_half_of_one_in_changes() -> None:
    assert version_chain.change_budget([], WEIGHTS, 4) == 0
    stored = [sent(1, 1000, True)]
    assert version_chain.change_budget(stored, WEIGHTS, 4) == 500
    assert version_chain.change_budget(stored, WEIGHTS, 1) == 0
    stored += [sent(2, 200, False), sent(3, 250, False)]
    assert version_chain.change_budget(stored, WEIGHTS, 4) == 50
    assert version_chain.change_budget(stored, WEIGHTS, 3) == 0
    stored += [sent(4, 1000, True)]
    assert version_chain.change_budget(stored, WEIGHTS, 4) == 500


def test_what_the_three_newest_are_built_from_stays() -> None:
    stored = [sent(n, 100, n in (1, 4, 6)) for n in range(1, 9)]
    # 6, 7, 8 need 6; 5, 6, 7 need 4.
    assert steps_of(version_chain.unneeded(stored)) == [1, 2, 3, 4, 5]
    assert steps_of(version_chain.unneeded(stored[:7])) == [1, 2, 3]
    assert version_chain.unneeded(stored[:2]) == [] and version_chain.unneeded([]) == []


@given(st.lists(st.integers(0, 1200), max_size=60), st.integers(1, 30))
def test_whatever_changes_the_store_stays_within_its_bytes(sizes: list[int], every: int) -> None:
    stored: list[Sent] = []
    for step, size in enumerate(sizes):
        budget = version_chain.change_budget(stored, WEIGHTS, every)
        whole = not budget or size > budget
        stored.append(sent(step % 256, WEIGHTS if whole else size, whole))
        assert (
            sum(version.object.size for version in stored)
            <= (KEEP + 1.5) * WEIGHTS
            <= version_chain.limit_bytes(WEIGHTS)
        )
        gone = version_chain.unneeded(stored)
        stored = [version for version in stored if version not in gone]
        assert stored[0].whole and len(stored) >= min(KEEP, step + 1)
        assert sum(version.object.size for version in stored) <= (KEEP + 0.5) * WEIGHTS
