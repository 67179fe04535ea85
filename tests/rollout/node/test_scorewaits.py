"""Waiting for scores: errors of the store pass, what nobody expected hands the tree back, and nothing waits for ever."""

import asyncio
from types import SimpleNamespace

import pytest

from banyan.errors import BanyanError, NotFound, Refused
from services.rollout.node import score_waits
from services.rollout.node.score_waits import ScoreWaits
from services.rollout.ports import Awaited


class Store:
    """Raises one error after the other, then has a score."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def awaited(
        self, tree_id: bytes, epoch: int, known: int, round: int | None, deadline_s: float
    ) -> Awaited:
        assert round is None, "a policy that does not grow by rooms is not woken by them"
        if self.errors:
            raise self.errors.pop(0)
        return Awaited(["score"])  # type: ignore[list-item]


def waiting(deadline_s: float = 30.0) -> SimpleNamespace:
    grower = SimpleNamespace(
        waits=True,
        lacks_scores=True,
        lacks_room=False,
        round=0,
        scored=lambda scores: scores,
        unscored=lambda: "none",
    )
    policy = SimpleNamespace(needs_scores=True)
    spec = SimpleNamespace(tree_id=b"t", score_deadline_s=deadline_s, policy=policy)
    return SimpleNamespace(
        grower=grower, spec=spec, epoch=1, awaiting=False, finishing=False, touched=0.0
    )


async def wait(store: Store, live: SimpleNamespace, act=None) -> tuple[list, list]:
    acted, returned = [], []

    async def done(of, work) -> None:
        acted.append(work())
        of.grower.waits = False

    waits = ScoreWaits(store, act or done, lambda _: True, lambda _, error: returned.append(error))  # type: ignore[arg-type]
    assert waits.due(live)
    async with asyncio.timeout(10):
        await waits.wait(live)
    assert not live.awaiting
    return acted, returned


async def test_errors_of_the_store_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_waits, "_AGAIN_S", 0.01)
    acted, returned = await wait(
        Store(BanyanError("INTERNAL"), NotFound("?"), Refused("no", "PERMISSION_DENIED")), waiting()
    )
    assert acted == [["score"]] and not returned


@pytest.mark.parametrize("reason", ["STALE_EPOCH", "NOT_GROWING"])
async def test_a_claim_that_is_over_is_left_to_its_keeper(reason: str) -> None:
    assert await wait(Store(Refused("over", reason)), waiting()) == ([], [])


async def test_an_unexpected_error_hands_the_tree_back() -> None:
    acted, (error,) = await wait(Store(ZeroDivisionError("mistake")), waiting())
    assert not acted and isinstance(error, ZeroDivisionError)


async def test_a_step_that_cannot_be_carried_out_hands_the_tree_back() -> None:
    async def act(live, work) -> None:
        raise BanyanError("the engine has too many commands waiting")

    _, (error,) = await wait(Store(), waiting(), act)
    assert isinstance(error, BanyanError)


async def test_a_deadline_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_waits, "_AGAIN_S", 0.01)
    acted, _ = await wait(Store(*[BanyanError("down")] * 1000), waiting(0.1))
    assert acted == ["none"]
