"""Actions under way: each is asked of the verifier until it has an answer, and its tree goes on."""

import asyncio
import logging
from functools import partial
from typing import Protocol

from banyan.errors import BanyanError, Refused, TemporaryError
from banyan.reasons import Reason
from services.rollout.growth import return_reasons
from services.rollout.growth.step import Call, GrowthStep
from services.rollout.node.active_trees import ActiveTree, ActiveTrees
from services.rollout.ports import Environments
from services.rollout.timeouts import BackgroundTasks

log = logging.getLogger(__name__)

_ASK_S = 10.0  # of one attempt, also for the action to be stored; it counts as progress
_PAUSE_S = 0.5  # between attempts, doubled up to the longest
_LONGEST_PAUSE_S = 8.0
_MOST_LOST = 3  # attempts whose runner was lost; then another node may have more luck


class Executor(Protocol):
    """The part of the step executor that actions need."""

    async def act(self, tree: ActiveTree, change: "partial[GrowthStep]") -> None:
        """Make a change to one tree and execute the step that follows."""
        ...

    def give_up(self, tree: ActiveTree, reason: str) -> None:
        """Begin to return a tree to the store."""
        ...


class Acting:
    """The actions of all trees of a node.

    environments: the verifier; None on a node that cannot reach one.
    trees: trees of the node.
    tasks: tasks of the node, to which the actions are added.
    """

    def __init__(
        self, environments: Environments | None, trees: ActiveTrees, tasks: BackgroundTasks
    ) -> None:
        self._environments, self._trees, self._tasks = environments, trees, tasks

    def begin(self, tree: ActiveTree, call: Call, executor: Executor) -> None:
        """Have an action answered in the background."""
        if self._environments is None:
            executor.give_up(tree, return_reasons.NO_ENVIRONMENT)
            return
        self._tasks.spawn(self._act(tree, call, executor, self._environments))

    async def _act(
        self, tree: ActiveTree, call: Call, executor: Executor, environments: Environments
    ) -> None:
        pause_s, lost = _PAUSE_S, 0
        while self._trees.holds(tree) and tree.is_growing:
            tree.note_progress()
            try:
                answer = await environments.act(
                    tree.spec.tree_id,
                    tree.epoch,
                    call.action,
                    call=call.text,
                    deadline_s=_ASK_S,
                )
            except TemporaryError as error:
                lost += error.reason == Reason.CHILD_DIED
                if lost >= _MOST_LOST:
                    executor.give_up(tree, return_reasons.here(error))
                    return
                log.info("tree %s: %s; it is asked again", tree.label, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            except Refused as error:
                if error.reason in (Reason.STALE_EPOCH, Reason.NOT_GROWING):
                    return  # the tree is lost, which the renewal of its claim finds
                executor.give_up(tree, return_reasons.failed(error))
                return
            except BanyanError as error:
                executor.give_up(tree, return_reasons.failed(error))
                return
            tree.note_progress()
            await executor.act(tree, partial(tree.grower.answered, call.action, answer))
            return
