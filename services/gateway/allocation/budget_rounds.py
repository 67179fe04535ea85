"""Rounds of growth budgets for one run, as `control.rooms` decides on the store's facts."""

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
from banyan.wire.weights import by_name
from services.gateway.allocation.growth_budgets import Grant, GrowthBudgets, TreeBudget
from services.gateway.domain.ports import Store

log = logging.getLogger(__name__)

_WAIT_S = 20.0
_RETRY_S = 1.0
_COALESCE_S = 0.05  # news within this time are one


class BudgetRounds:
    """The rounds of one run. It holds no state: another gateway could go on at any point."""

    def __init__(self, store: Store, recipe: Recipe, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        tree_policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
        self._start, self._scorers = int(tree_policy.start), len(recipe.scorers)
        self._weights = by_name(recipe.scorers, recipe.scorer_weights)
        self._block = recipe.control.groups_per_batch
        share = registry.build("rooms", recipe.control.rooms, recipe.control.rooms_settings)
        # A deterministic run decides on whole waves, whatever the time.
        patience_s = math.inf if recipe.deterministic else recipe.control.score_deadline_s
        self._budgets = GrowthBudgets(share, self._block, int(tree_policy.most), patience_s)

    async def reconcile(self) -> None:
        """Decide all rounds that are due. Raise Refused once a newer gateway has taken over."""
        answer = await self._store.read_rooms(self._run_id, self._block, 0, 0.0)
        trees = [self._tree_budget(facts) for facts in answer.trees]
        # In a thread, because a thousand prompts take a while.
        due = await asyncio.to_thread(self._budgets.grants, trees)
        for block, grants in due.items():
            leaves = sum(grant.leaves for grant in grants)
            number = grants[0].round
            log.info("run %s: round %d of block %d: %d leaves", self._run_id, number, block, leaves)
            await self._store.grant_rooms(self._run_id, [_wire(grant) for grant in grants])

    async def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever leaves were scored or other trees grow, until cancelled.

        Errors are logged and retried.
        """
        known = 0
        while True:
            try:
                answer = await self._store.read_rooms(self._run_id, 0, known, _WAIT_S)
            except BanyanError as error:
                log.warning("run %s: cannot read growth budgets: %s", self._run_id, error)
                await asyncio.sleep(_RETRY_S)
                continue
            if answer.seen != known:
                wake()
                await asyncio.sleep(_COALESCE_S)
            known = answer.seen

    def _tree_budget(self, facts: runs.RoomFacts) -> TreeBudget:
        rewards = rewards_from_wire(facts.scores, self._scorers, self._weights)
        return TreeBudget(
            tree_id=facts.tree_id,
            ordinal=facts.group_ordinal,
            growing=facts.growing,
            granted=facts.room.leaves if facts.HasField("room") else self._start,
            round=facts.room.round,
            final=facts.room.final,
            ended=facts.leaves,
            rewards=tuple(rewards.values()),
            waited_s=facts.waited_ms / 1000,
        )


def _wire(grant: Grant) -> runs.RoomGrant:
    budget = tree_pb2.TreeRoom(leaves=grant.leaves, final=grant.final, round=grant.round)
    return runs.RoomGrant(tree_id=grant.tree_id, room=budget)
