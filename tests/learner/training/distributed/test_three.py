"""Three ranks, one without a tree in some batches, and with unequal shards of parameters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.learner.training.distributed.conftest import Pair, met, part, pieces_of, recipe
from tests.learner.training.distributed.test_two import LORA, alone, apart, trained

pytestmark = pytest.mark.slow


@pytest.fixture
def three() -> Iterator[Pair]:
    ranks = met(size=3)
    yield ranks
    part(ranks)


@pytest.mark.parametrize("lora", [None, LORA])
async def test_three_ranks_equal_one(
    three: Pair, tiny_folder: Path, forest: Any, lora: dict[str, Any] | None
) -> None:
    batches, how = [pieces_of(forest, 0, 7), pieces_of(forest, 1, 2)], recipe(lora=lora)
    timed, state = await trained(three.thread(how), tiny_folder, batches)
    expected, whole = await alone(tiny_folder, batches, how)
    assert [t.report.grad_norm for t in timed] == pytest.approx(
        [t.report.grad_norm for t in expected], rel=1e-4
    )
    assert apart(whole.weights, state.weights) < 1e-5
    repeated = (await trained(three.thread(how), tiny_folder, batches))[1]
    assert all(repeated.weights[n].equal(t) for n, t in state.weights.items())
