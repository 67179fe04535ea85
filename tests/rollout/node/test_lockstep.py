"""Turns in lockstep, and the waves that may start."""

import asyncio
from types import SimpleNamespace
from typing import Any

from banyan.errors import Refused
from services.rollout.growth.step import GrowthStep
from services.rollout.node import lockstep
from services.rollout.node.lockstep import Lockstep, startable


class _Tree:
    def __init__(self, number: int, wave: str = "", size: int = 0, claimed_at: float = 0.0) -> None:
        self.number, self.spec = number, SimpleNamespace(order=(number, 0))
        self.wave, self.wave_size, self.claimed_at = wave, size, claimed_at


def turns(growing: list[Any], act_all: Any, give_up: Any = None) -> Lockstep:
    trees: Any = SimpleNamespace(growing=growing)
    executor: Any = SimpleNamespace(act_all=act_all, give_up=give_up)
    return Lockstep(trees, executor)


async def test_trees_go_on_together_in_their_order() -> None:
    trees: list[Any] = [_Tree(number) for number in range(3)]
    growing, acted = list(trees), list[Any]()

    async def act_all(changes: Any) -> None:
        acted.append([(tree.number, change().requests) for tree, change in changes])

    wave = turns(growing, act_all)
    tasks = [asyncio.create_task(wave.act(tree, GrowthStep)) for tree in (trees[2], trees[0])]
    await asyncio.sleep(0)
    assert not acted, "the second has nothing yet"
    async with asyncio.timeout(5):
        await wave.act(trees[1], GrowthStep)
        await asyncio.gather(*tasks)
    assert acted == [[(0, ()), (1, ()), (2, ())]]
    last = asyncio.create_task(wave.act(trees[0], GrowthStep))
    await asyncio.sleep(0)
    growing[:] = trees[:1]  # the others ended
    async with asyncio.timeout(5):
        await last
    assert acted[1:] == [[(0, ())]]


async def test_a_turn_that_fails_returns_all_of_its_trees() -> None:
    trees: list[Any] = [_Tree(number) for number in range(3)]
    growing, returned = list(trees), list[tuple[int, str]]()

    async def act_all(changes: Any) -> None:
        growing.remove(trees[1])  # it was returned alone, for an error of its policy
        raise Refused("the log takes nothing")

    def give_up(tree: Any, reason: str) -> None:
        returned.append((tree.number, reason))
        growing.remove(tree)

    wave = turns(growing, act_all, give_up)
    async with asyncio.timeout(5):
        await asyncio.gather(*(wave.act(tree, GrowthStep) for tree in trees))
    reason = "UNABLE: Refused: the log takes nothing"
    assert returned == [(0, reason), (2, reason)]


def test_a_wave_starts_when_it_is_whole_or_late() -> None:
    whole: list[Any] = [_Tree(1, "b", 2), _Tree(0, "b", 2)]
    part: list[Any] = [_Tree(5, "a", 3, claimed_at=4.0), _Tree(4, "a", 3)]
    alone: list[Any] = [_Tree(9), _Tree(8)]
    pending = [*whole, *part, *alone]
    assert [[tree.number for tree in wave] for wave in startable(pending, 5.0)] == [[8, 9], [0, 1]]
    late = 4.0 + lockstep.WAVE_WAIT_S + 0.1
    waves = [[tree.number for tree in wave] for wave in startable(pending, late)]
    assert waves == [[8, 9], [4, 5], [0, 1]]
