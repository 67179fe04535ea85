"""The traits that plugins declare, and that nothing reads them but through one place."""

import re
from pathlib import Path

import pytest

from banyan import registry
from banyan.facts import INSIDE, STEPS
from banyan.plugins import traits
from banyan.plugins.traits import EstimatorTraits, PolicyTraits

OURS = [
    path
    for folder in ("banyan", "services")
    for path in (Path(__file__).parents[2] / folder).rglob("*.py")
]


class Declares:
    """A plugin with traits of both kinds."""

    needs_scores = True
    gives = (STEPS,)
    width = 6
    needs = (INSIDE,)
    needs_logprobs = True

    @property
    def needs_entropy(self) -> bool:
        return True


def test_traits_are_those_that_are_declared_and_defaults_else() -> None:
    policy = traits.of_policy(Declares())
    assert policy == PolicyTraits(needs_scores=True, needs_entropy=True, gives=(STEPS,), width=6)
    assert traits.of_policy(object()) == PolicyTraits()
    estimator = traits.of_estimator(Declares())
    assert estimator.needs_logprobs and estimator.needs_entropy and estimator.counts_places
    assert traits.of_estimator(object()) == EstimatorTraits()


@pytest.mark.parametrize("width", [0, -1, 1.5, "2", None])
def test_a_width_that_is_no_count_is_one(width: object) -> None:
    assert traits.of_policy(type("P", (), {"width": width})()).width == 1


def test_places_count_where_steps_are_needed_or_declared() -> None:
    assert EstimatorTraits(needs=(STEPS,)).counts_places
    assert EstimatorTraits(by_steps=True).counts_places
    assert not EstimatorTraits(needs=("part:a",), needs_entropy=True).counts_places


def test_what_a_plugin_may_need_is_what_the_traits_are() -> None:
    assert registry.NEEDS["generate"] == {
        *("needs_scores", "needs_entropy", "needs_room", "needs_head")
    }
    assert registry.NEEDS["optimise"] == {"needs_entropy", "needs_logprobs"}


def test_nobody_reads_a_trait_by_its_name() -> None:
    names = {*PolicyTraits.__dataclass_fields__, *EstimatorTraits.__dataclass_fields__}
    read = re.compile(r'getattr\([^)]*"(' + "|".join(sorted(names)) + r')"')
    found = [str(path) for path in OURS if read.search(path.read_text())]
    assert not found
