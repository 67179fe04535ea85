"""Actions under way: each is asked of the verifier until it has an answer, and its tree goes on.

In lockstep (deterministic mode) answers wait for each other: once each action has its answer, or
will have none, the trees go on together, in logical order, and the engine takes its next step.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from banyan.environments.endings import Ending
from banyan.errors import BanyanError, Refused, TemporaryError
from banyan.reasons import Reason
from services.rollout.growth import return_reasons
from services.rollout.growth.step import Call, GrowthStep
from services.rollout.node.active_trees import ActiveTree, ActiveTrees
from services.rollout.ports import Environments
from services.rollout.timeouts import BackgroundTasks

log = logging.getLogger(__name__)

Change = Callable[[], GrowthStep]

_ASK_S = 10.0  # of one attempt, also for the action to be stored; it counts as progress
_PAUSE_S = 0.5  # between attempts, doubled up to the longest
_LONGEST_PAUSE_S = 8.0
_MOST_LOST = 16  # attempts whose runner was lost; a verifier ends the path before


class Executor(Protocol):
    """The part of the step executor that actions need."""

    async def act_all(
        self, changes: Sequence[tuple[ActiveTree, Change]], is_turn: bool = False
    ) -> None:
        """Make changes and execute the steps that follow as one.

        is_turn: whether the engine, in lockstep, waits for these.
        """
        ...

    def give_up(self, tree: ActiveTree, reason: str) -> None:
        """Begin to return a tree to the store."""
        ...


class Acting:
    """The actions of all trees of a node.

    environments: the verifier; None on a node that cannot reach one.
    trees: trees of the node.
    tasks: tasks of the node, to which the actions are added.
    lockstep: whether answers wait for each other.

    Attributes:
    open: number of actions without an answer.
    """

    def __init__(
        self,
        environments: Environments | None,
        trees: ActiveTrees,
        tasks: BackgroundTasks,
        lockstep: bool = False,
    ) -> None:
        self._environments, self._trees, self._tasks = environments, trees, tasks
        self._lockstep = lockstep
        self._answers: list[tuple[Call, ActiveTree, Change]] = []
        self._is_due = self._is_passing_on = False
        self.open = 0

    def begin(self, calls: Sequence[tuple[ActiveTree, Call]], executor: Executor) -> None:
        """Have the actions of a step answered in the background."""
        self.open += len(calls)
        for tree, call in calls:
            self._tasks.spawn(self._act(tree, call, executor))
        if calls:
            self._trees.changed.set()  # while they wait, another tree may use the engine

    async def _act(self, tree: ActiveTree, call: Call, executor: Executor) -> None:
        try:
            change = await self._answer(tree, call, executor)
        except Exception as error:  # of any kind: nothing else would ever go on with the tree
            log.exception("an action of tree %s cannot be asked for", tree.label)
            executor.give_up(tree, return_reasons.here(error))
            change = None
        self.open -= 1
        if change is not None:
            self._answers.append((call, tree, change))
        if not (self._lockstep and self.open):
            await self._go_on(executor)

    async def _go_on(self, executor: Executor) -> None:
        """Have the trees go on; answers that come meanwhile go together, in one message."""
        self._is_due = True
        if self._is_passing_on:
            return
        self._is_passing_on = True
        try:
            while self._is_due:
                self._is_due = False
                await self._pass_on(executor)
        finally:
            self._is_passing_on = False

    async def _pass_on(self, executor: Executor) -> None:
        """Hand the answers that are here to their trees; without any, the engine goes on."""
        answers, self._answers = sorted(self._answers, key=lambda item: item[0].order), []
        try:
            await executor.act_all([(tree, change) for _, tree, change in answers], is_turn=True)
        except Exception as error:  # of any kind: each tree must go on or be returned
            log.exception("%d answers cannot be handed over", len(answers))
            for _, tree, _ in answers:
                executor.give_up(tree, return_reasons.here(error))

    def _note_progress(self, tree: ActiveTree) -> None:
        """Record the progress of a tree, and of those that wait for its answer."""
        for waiting in self._trees.growing if self._lockstep else (tree,):
            waiting.note_progress()

    async def _answer(self, tree: ActiveTree, call: Call, executor: Executor) -> Change | None:
        """Return the change that an answer makes to its tree; None if there will be none."""
        environments = self._environments
        if environments is None:
            executor.give_up(tree, return_reasons.NO_ENVIRONMENT)
            return None
        pause_s, lost = _PAUSE_S, 0
        while self._trees.holds(tree) and tree.is_growing:
            self._note_progress(tree)
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
                    return None
                log.info("tree %s: %s; it is asked again", tree.label, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            except Refused as error:
                if error.reason in (Reason.STALE_EPOCH, Reason.NOT_GROWING, Reason.NOT_ITS_CLAIM):
                    return None  # the tree is lost, which the renewal of its claim finds
                executor.give_up(tree, return_reasons.failed(error))
                return None
            except BanyanError as error:
                executor.give_up(tree, return_reasons.failed(error))
                return None
            self._note_progress(tree)
            if isinstance(answer, Ending):
                return partial(tree.grower.unanswered, call.action, answer)
            return partial(tree.grower.answered, call.action, answer)
        return None
