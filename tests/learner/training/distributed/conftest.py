"""Fixtures of two ranks: rank 0 in the test's process, rank 1 a real follower."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from banyan.plugins import Observation
from banyan.recipe import Recipe
from banyan.view import TreeView
from services.learner.packing import unroll
from services.learner.packing.unroll import TreePart
from services.learner.training.distributed.commands import CommandChannel
from services.learner.training.distributed.rank_env import RankPlace
from services.learner.training.distributed.rank_group import RankGroup
from services.learner.training.distributed.thread import RankThread
from services.learner.training.distributed.workers import Workers
from tests.learner import rig
from tests.learner.service_world import world as world  # a fixture

BUDGET = 60


@dataclass
class Pair:
    """Joined ranks, for consecutive learners."""

    workers: Workers
    commands: CommandChannel

    def thread(self, recipe: Recipe) -> RankThread:
        """Return rank 0's torch thread of a learner."""
        return RankThread(recipe, 1, self.commands)


def recipe(**changes: Any) -> Recipe:
    """Return a recipe with clipped gradients, and a budget that makes several sequences."""
    data = rig.recipe(5).model_dump(mode="json")
    dtype, engine = changes.pop("dtype", "float32"), changes.pop("engine", "torch")
    data["optimise"] |= {
        "tokens_per_row": BUDGET,
        "clip_norm": 0.05,
        "learning_rate": 1e-3,
        **changes,
    }
    data["resources"] |= {"dtype": dtype, "learner_ranks": 2, "engine": engine}
    return Recipe.model_validate(data)


def pieces_of(forest: Any, seed: int, trees: int = 5) -> list[TreePart]:
    """Return pieces of unequal trees with drawn advantages; a head observes first tokens."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(trees):
        view = forest.random(rng, 2 + 2 * number)
        leaf_L = np.where(
            np.isfinite(view.rewards_L), rng.standard_normal(len(view.rewards_L)), np.nan
        )
        observed = {
            leaf: [Observation(leaf, 0, 0.5)] if _sampled(view, at) else []
            for at, leaf in enumerate(view.leaves_L)
        }
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), BUDGET):
            piece = unroll.unroll(view, run, leaf_L, None, b"now", observed)
            parts.append(
                TreePart(
                    **{
                        **{n: getattr(piece, n) for n in TreePart.__slots__},
                        "tree": bytes([number]),
                    }
                )
            )
    return parts


def _sampled(view: TreeView, leaf: int) -> int:
    return sum(len(view.nodes[i]) for i in view.path(leaf) if view.nodes[i].trained)


def met(timeout_s: float = 30.0, size: int = 2) -> Pair:
    """Start the followers and join them."""
    workers = Workers(size, 1)
    try:
        return Pair(
            workers,
            CommandChannel(
                RankGroup(RankPlace(0, size), timeout_s, workers.store, check=workers.check)
            ),
        )
    except BaseException:
        workers.end()
        raise


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANYAN_RUN", rig.RUN)
        patch.setenv("BANYAN_RANK_TIMEOUT_S", "30")
        patch.delenv("RANK", raising=False)
        yield


@pytest.fixture(scope="module")
def pair(_environment: Any) -> Any:
    ranks = met()
    yield ranks
    part(ranks)


def part(ranks: Pair) -> None:
    """End the followers."""
    RankThread(recipe(), 1, ranks.commands, ranks.workers).done()
