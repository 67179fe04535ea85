"""Waits for scores: store errors pass, unexpected errors return the tree, and every wait ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import BanyanError, NotFound, Refused
from banyan.plugins.traits import PolicyTraits
from services.rollout.node import score_waits
from services.rollout.node.active_trees import ActiveTree, TreeState
from services.rollout.node.score_waits import ScoreWaits
from services.rollout.ports import Awaited


class Store:
    """A store that raises one error after the other, then has a score."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def await_scores(
        self, tree_id: bytes, epoch: int, known: int, round: int | None, deadline_s: float
    ) -> Awaited:
        assert round is None, "growth budgets do not wake a policy that does not grow by them"
        if self.errors:
            raise self.errors.pop(0)
        return Awaited(["score"])  # type: ignore[list-item]


def waiting(deadline_s: float = 30.0) -> ActiveTree:
    grower: Any = SimpleNamespace(
        waits=True,
        lacks_scores=True,
        round=0,
        scored=lambda scores: scores,
        unscored=lambda: "none",
    )
    spec: Any = SimpleNamespace(
        tree_id=b"t", score_deadline_s=deadline_s, traits=PolicyTraits(needs_scores=True)
    )
    nothing: Any = None
    tree = ActiveTree(spec=spec, grower=grower, epoch=1, delivery=nothing, span=nothing)
    tree.enter(TreeState.GROWING)
    tree.enter(TreeState.AWAITING)
    return tree


async def wait(store: Store, tree: ActiveTree, act: Any = None) -> tuple[list, list]:
    """Wait for a tree; return the steps that followed, and the reasons of returns."""
    steps: list = []
    reasons: list = []

    async def end(tree: Any, change: Any) -> None:
        steps.append(change())
        tree.grower.waits = False

    waits = ScoreWaits(
        store,  # type: ignore[arg-type]
        SimpleNamespace(holds=lambda _: True),  # type: ignore[arg-type]
        executor=SimpleNamespace(  # type: ignore[arg-type]
            give_up=lambda _, reason: reasons.append(reason)
        ),
        actor=SimpleNamespace(act=act or end),  # type: ignore[arg-type]
        tasks=SimpleNamespace(),  # type: ignore[arg-type]
    )
    async with asyncio.timeout(10):
        await waits.wait(tree)
    assert tree.state is TreeState.GROWING
    return steps, reasons


async def test_errors_of_the_store_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_waits, "_RETRY_S", 0.01)
    errors = BanyanError("INTERNAL"), NotFound("?"), Refused("no", "PERMISSION_DENIED")
    steps, reasons = await wait(Store(*errors), waiting())
    assert steps == [["score"]] and not reasons


@pytest.mark.parametrize("reason", ["STALE_EPOCH", "NOT_GROWING"])
async def test_a_claim_that_is_over_is_left_to_its_renewal(reason: str) -> None:
    assert await wait(Store(Refused("over", reason)), waiting()) == ([], [])


async def test_an_unexpected_error_returns_the_tree() -> None:
    steps, reasons = await wait(Store(ZeroDivisionError("mistake")), waiting())
    assert not steps and reasons == ["UNABLE: ZeroDivisionError: mistake"]


async def test_a_step_that_cannot_be_executed_returns_the_tree() -> None:
    async def act(tree: Any, change: Any) -> None:
        raise BanyanError("the engine has too many commands waiting")

    _, (reason,) = await wait(Store(), waiting(), act)
    assert reason.startswith("UNABLE: BanyanError")


async def test_a_deadline_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_waits, "_RETRY_S", 0.01)
    steps, _ = await wait(Store(*[BanyanError("down")] * 1000), waiting(0.1))
    assert steps == ["none"]
