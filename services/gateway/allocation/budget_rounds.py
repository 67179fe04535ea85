"""Gives the trees of one run room while they grow: reads what the store knows, and stores what `control.rooms` decides."""

import asyncio
import logging
import math
from collections.abc import Callable

from banyan import registry
from banyan.errors import BanyanError
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import tree_pb2
from banyan.wire.segments import rewards_from_wire
from services.gateway.allocation.growth_budgets import Grant, GrowthBudgets, TreeBudget
from services.gateway.domain.ports import Store

log = logging.getLogger(__name__)

_WAIT_S = 20.0
_AGAIN_S = 1.0
_SOON_S = 0.05  # news that come within it are one


class BudgetRounds:
    """Keeps nothing but the last answer's number: another gateway would go on at any point."""

    def __init__(self, store: Store, recipe: Recipe, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
        self._start, self._scorers = int(policy.start), len(recipe.scorers)
        self._block = recipe.control.groups_per_batch
        share = registry.build("rooms", recipe.control.rooms, recipe.control.rooms_settings)
        # A deterministic run decides on whole waves, whatever the time.
        patience = math.inf if recipe.deterministic else recipe.control.score_deadline_s
        self._rooms = GrowthBudgets(share, self._block, int(policy.most), patience)

    async def look(self) -> None:
        """Decides all rounds that are due. Raises Refused when a newer gateway has taken over."""
        answer = await self._store.read_rooms(self._run_id, self._block, 0, 0.0)
        standings = [self._standing(fact) for fact in answer.trees]
        # a thousand prompts take a while
        due = await asyncio.to_thread(self._rooms.grants, standings)
        for block, grants in due.items():
            leaves = sum(grant.leaves for grant in grants)
            log.info(
                "run %s: round %d of block %d: %d leaves",
                self._run_id,
                grants[0].round,
                block,
                leaves,
            )
            await self._store.grant_rooms(self._run_id, [_wire(grant) for grant in grants])

    async def hear(self, news: Callable[[], None]) -> None:
        """Calls `news` whenever leaves were scored, or other trees grow. For ever; faults pass."""
        seen = 0
        while True:
            try:
                answer = await self._store.read_rooms(self._run_id, 0, seen, _WAIT_S)
            except BanyanError as error:
                log.warning("run %s: rooms are not read: %s", self._run_id, error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if answer.seen != seen:
                news()
                await asyncio.sleep(_SOON_S)
            seen = answer.seen

    def _standing(self, fact: runs.RoomFacts) -> TreeBudget:
        rewards = rewards_from_wire(fact.scores, self._scorers)
        told = fact.HasField("room")
        return TreeBudget(
            tree_id=fact.tree_id,
            ordinal=fact.group_ordinal,
            growing=fact.growing,
            given=fact.room.leaves if told else self._start,
            round=fact.room.round,
            final=fact.room.final,
            ended=fact.leaves,
            rewards=tuple(rewards.values()),
            waited_s=fact.waited_ms / 1000,
        )


def _wire(grant: Grant) -> runs.RoomGrant:
    room = tree_pb2.TreeRoom(leaves=grant.leaves, final=grant.final, round=grant.round)
    return runs.RoomGrant(tree_id=grant.tree_id, room=room)
