"""Execution of growth steps: requests go to the engine, events to the log, waits begin.

Tree policies and chat templates are users' code: an error that they raise ends their tree alone.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from services.rollout.engines.port import Key, Request, Sampled
from services.rollout.engines.thread import EngineThread, Refusal
from services.rollout.growth import return_reasons
from services.rollout.growth.step import GrowthStep
from services.rollout.node.acting import Acting
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.event_reporter import EventReporter
from services.rollout.node.tracing import Spans
from services.rollout.timeouts import BackgroundTasks

log = logging.getLogger(__name__)

Change = Callable[[], GrowthStep]
"""A call of a grower with its arguments, such as `partial(grower.ended, samples)`."""


class StepExecutor:
    """The executor of growth steps of all trees of a node.

    trees: trees of the node.
    thread: the engine's thread.
    reporter: publication of what grew.
    completer: end of claims.
    spans: spans of segments.
    acting: actions that wait for their answers.
    tasks: tasks of the node, to which returns of trees are added.
    lockstep: whether the engine takes a step only when the last one was answered.

    Attributes:
    treeless_queues: queues for segments that belong to no tree, by key.
    waiting: trees that have begun to await scores or a growth budget.
    """

    def __init__(
        self,
        trees: ActiveTrees,
        thread: EngineThread,
        *,
        reporter: EventReporter,
        completer: TreeCompleter,
        spans: Spans,
        acting: Acting,
        tasks: BackgroundTasks,
        lockstep: bool = False,
    ) -> None:
        self._acting = acting
        self._trees, self._thread, self._reporter = trees, thread, reporter
        self._completer, self._spans, self._tasks = completer, spans, tasks
        self._lockstep = lockstep
        self.treeless_queues: dict[Key, asyncio.Queue[Sampled]] = {}
        self.waiting: asyncio.Queue[ActiveTree] = asyncio.Queue()

    async def start(self, trees: Sequence[ActiveTree]) -> None:
        """Begin the growth of pending trees, in their order."""
        for tree in trees:
            tree.enter(TreeState.GROWING)
            tree.note_progress()
        if trees:  # in lockstep a wave, for which the engine waits
            await self.act_all([(tree, tree.grower.start) for tree in trees], is_turn=True)

    async def receive(self, samples: Sequence[Sampled], is_turn: bool = False) -> None:
        """Pass ended segments to their growers and execute the steps that follow.

        is_turn: whether they are from a step of the engine, which in lockstep waits for this.
        """
        ended: dict[tuple[bytes, int], list[Sampled]] = {}
        for sample in samples:
            if sample.key in self.treeless_queues:
                self.treeless_queues[sample.key].put_nowait(sample)
            elif isinstance(sample.key, tuple):
                ended.setdefault(sample.key[:2], []).append(sample)
        steps = []
        for (tree_id, epoch), part in ended.items():
            tree = self._trees.get(tree_id, epoch)
            if tree is None or tree.is_finishing:
                continue
            tree.note_progress()
            step = self._advance(tree, partial(tree.grower.ended, part))
            if step is not None:
                steps.append((tree, step))
        await self._execute(steps, is_turn)

    async def act(self, tree: ActiveTree, change: Change) -> None:
        """Make a change to one tree and execute the step that follows."""
        await self.act_all([(tree, change)])

    async def act_all(
        self, changes: Sequence[tuple[ActiveTree, Change]], is_turn: bool = False
    ) -> None:
        """Make changes to trees that are not finishing; execute the steps that follow as one.

        is_turn: whether the engine, in lockstep, waits for these.
        """
        steps = []
        for tree, change in changes:
            step = self._advance(tree, change) if not tree.is_finishing else None
            if step is not None:
                steps.append((tree, step))
        await self._execute(steps, is_turn)

    def give_up(self, tree: ActiveTree, reason: str) -> None:
        """Begin to return a tree to the store, unless it is already finishing."""
        if not tree.is_finishing:
            tree.enter(TreeState.FINISHING)
            self._tasks.spawn(self._cut_and_return(tree, reason))

    async def drop(self, tree: ActiveTree, reason: str, ack: bool) -> None:
        """Remove a tree that this node has lost.

        ack: whether its assignment is over.
        """
        log.info("tree %s is dropped here: %s", tree.label, reason)
        if self._trees.remove(tree):
            await self.cut(tree)
            if ack:
                await tree.delivery.ack()

    async def cut(self, *trees: ActiveTree) -> list[Sampled]:
        """Stop all branches of trees; return their segments so far."""
        keys = [tree.grower.key(branch) for tree in trees for branch in tree.grower.in_flight]
        self._spans.forget(keys)
        return await self._thread.abort(keys)

    def _advance(self, tree: ActiveTree, change: Change) -> GrowthStep | None:
        """Return the step that follows a change; give the tree up if there is none."""
        try:
            return change()
        except Exception as error:  # a user's code may raise anything
            log.exception("tree %s cannot be grown", tree.label)
            self.give_up(tree, return_reasons.failed(error))
            return None

    async def _execute(
        self, steps: Sequence[tuple[ActiveTree, GrowthStep]], is_turn: bool = False
    ) -> None:
        """Execute steps: requests first, so that the engine works while events are sent.

        In lockstep it takes no step while an action has no answer.
        """
        requests = [request for _, step in steps for request in step.requests]
        calls = [(tree, call) for tree, step in steps for call in step.calls]
        if calls and self._lockstep:
            self._thread.pause()
        turn = is_turn and self._lockstep and not (calls or self._acting.open)
        if requests and not self._trees.draining:
            self._submit(requests, turn)
        elif turn:
            self._thread.turn()
        await self._reporter.report(steps)
        self._acting.begin(calls, self)
        for tree, step in steps:
            if step.aborts:
                keys = [tree.grower.key(branch) for branch in step.aborts]
                await self.receive(await self._thread.abort(keys))
            if tree.state is TreeState.GROWING and tree.grower.waits:
                tree.enter(TreeState.AWAITING)
                self._trees.changed.set()
                self.waiting.put_nowait(tree)

    def _submit(self, requests: Sequence[Request], turn: bool) -> None:
        self._spans.requested(requests)
        future = asyncio.wrap_future(self._thread.submit(requests, turn))
        future.add_done_callback(self._submitted)

    def _submitted(self, answer: "asyncio.Future[list[Refusal]]") -> None:
        """Give up the trees whose requests the engine refused."""
        if answer.cancelled() or answer.exception() is not None:
            return  # the engine has ended, and the loop that reads its segments raises the cause
        for refusal in answer.result():
            tree = self._trees.get(*refusal.key[:2]) if isinstance(refusal.key, tuple) else None
            if tree is not None and not tree.is_finishing:
                log.error("tree %s ends here: %s", tree.label, refusal.reason)
                self.give_up(tree, return_reasons.refusal(refusal.reason, refusal.code))

    async def _cut_and_return(self, tree: ActiveTree, reason: str) -> None:
        async with self._completer.or_abandoned(tree):
            await self.cut(tree)
            await self._completer.flush_and_return(tree, reason)
