"""Waits of trees whose tree policy decides by scores, or grows by growth budgets.

Each wait is one call of the store, answered when there is news. A tree waits `score_deadline_s` for
scores; then its policy goes on without the missing ones. For a growth budget it waits twice as
long, from its start or from the last round, since control itself waits once as long for the other
trees of a round. If control stays silent, the tree ends with what it has.
"""

import asyncio
import logging
import time
from functools import partial
from typing import Protocol

from banyan.errors import BanyanError, Refused
from banyan.reasons import Reason
from services.rollout.growth import return_reasons
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.node.step_executor import Change, StepExecutor
from services.rollout.ports import Store
from services.rollout.timeouts import BackgroundTasks

log = logging.getLogger(__name__)

_CALL_S = 20.0
_RETRY_S = 1.0
_BUDGET_DEADLINES = 2.0  # score deadlines: control waits for one, and may be away for a while
_ANY = (1 << 32) - 1  # number of known scores, for a tree policy that does not need them
_OVER = frozenset({Reason.STALE_EPOCH, Reason.NOT_GROWING})  # the lease renewal drops the tree


class Actor(Protocol):
    """Changes to trees: the executor itself, or turns in lockstep."""

    async def act(self, tree: ActiveTree, change: Change) -> None:
        """Make a change to a tree and execute the step that follows."""
        ...


class ScoreWaits:
    """The waits of all trees of a node.

    store: the tree store.
    trees: trees of the node.
    executor: hands over trees that begin to wait; returns trees whose wait fails.
    actor: makes the changes that news cause.
    tasks: tasks of the node, to which waits are added.
    """

    def __init__(
        self,
        store: Store,
        trees: ActiveTrees,
        *,
        executor: StepExecutor,
        actor: Actor,
        tasks: BackgroundTasks,
    ) -> None:
        self._store, self._trees, self._executor = store, trees, executor
        self._actor, self._tasks = actor, tasks

    async def run(self) -> None:
        """Begin waits until cancelled."""
        while True:
            self._tasks.spawn(self.wait(await self._executor.waiting.get()))

    async def wait(self, tree: ActiveTree) -> None:
        """Wait until a tree goes on or ends."""
        try:
            await self._wait(tree)
        except Exception as error:  # of any kind: nothing else would ever go on with the tree
            if isinstance(error, Refused) and error.reason in _OVER:
                log.info("tree %s waits no more: %s", tree.label, error)
            elif self._trees.holds(tree):
                log.exception("tree %s cannot wait", tree.label)
                self._executor.give_up(tree, return_reasons.here(error))
        finally:
            if tree.state is TreeState.AWAITING:
                tree.enter(TreeState.GROWING)

    async def _wait(self, tree: ActiveTree) -> None:
        known, since, grower = 0, time.monotonic(), tree.grower
        while self._trees.holds(tree) and not tree.is_finishing and grower.waits:
            round = grower.round
            left_s = since + _patience_s(tree) - time.monotonic()
            if left_s > 0:
                known = await self._poll(tree, known, min(left_s, _CALL_S))
            else:
                await self._go_on(tree)
            if left_s <= 0 or grower.round > round:
                since = time.monotonic()

    async def _go_on(self, tree: ActiveTree) -> None:
        """Let a tree go on without what did not come."""
        if tree.grower.lacks_scores:
            log.warning("tree %s goes on without scores that did not come", tree.label)
            await self._actor.act(tree, tree.grower.unscored)
        else:
            leaves = len(tree.grower.leaves)
            log.warning(
                "tree %s ends with %d leaves: no growth budget was granted in time",
                tree.label,
                leaves,
            )
            await self._actor.act(tree, tree.grower.budget_withheld)

    async def _poll(self, tree: ActiveTree, known: int, deadline_s: float) -> int:
        """Ask the store for news of a tree once; return the number of known scores."""
        tree.note_progress()  # a wait is progress, up to its deadline
        grower = tree.grower
        least = known if tree.spec.traits.needs_scores else _ANY
        round = grower.round if tree.spec.traits.needs_room else None
        try:
            news = await self._store.await_scores(
                tree.spec.tree_id, tree.epoch, known=least, round=round, deadline_s=deadline_s
            )
        except BanyanError as error:  # it may pass; if not, the wait ends at its deadline
            if error.reason in _OVER:
                raise
            log.warning("cannot read the news of a tree: %s", error)
            await asyncio.sleep(_RETRY_S)
            return known
        if len(news.scores) > least and self._trees.holds(tree):
            await self._actor.act(tree, partial(grower.scored, news.scores))
        grant = news.grant if round is not None else None
        if grant is not None and grant.round > grower.round and self._trees.holds(tree):
            await self._actor.act(tree, partial(grower.budget_granted, grant))
        return max(known, len(news.scores))


def _patience_s(tree: ActiveTree) -> float:
    deadlines = 1.0 if tree.grower.lacks_scores else _BUDGET_DEADLINES
    return deadlines * tree.spec.score_deadline_s
