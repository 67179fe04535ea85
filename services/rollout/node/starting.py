"""The start of pending trees, once the policy that they need is loaded."""

import time

from services.chassis.rpc.health import Pulse
from services.rollout.engines.thread import EngineThread
from services.rollout.growth import return_reasons
from services.rollout.node.active_trees import ActiveTrees
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.config import NodeConfig
from services.rollout.node.lockstep import startable
from services.rollout.node.step_executor import StepExecutor
from services.rollout.timeouts import first
from services.rollout.weights.refresh import Refresher

_TICK_S = 1.0
_START_S = 1800.0  # a new policy is fetched and loaded meanwhile, and each has its own deadline


class TreeStarter:
    """The loop that refreshes the policy and starts trees.

    config: configuration of the node.
    trees: trees of the node.
    thread: the engine's thread.
    refresher: keeps the engine on the wanted policy.
    executor: executor of steps.
    completer: end of claims.
    """

    def __init__(
        self,
        config: NodeConfig,
        trees: ActiveTrees,
        thread: EngineThread,
        *,
        refresher: Refresher,
        executor: StepExecutor,
        completer: TreeCompleter,
    ) -> None:
        self._config, self._trees, self._thread = config, trees, thread
        self._refresher, self._executor, self._completer = refresher, executor, completer
        self.pulse = Pulse("starting trees")

    async def run(self) -> None:
        """Start trees until cancelled, whenever something changed."""
        while True:
            self.pulse.beat("a look at what may start", _START_S)
            await first(self._trees.start_due, _TICK_S)
            self._trees.start_due.clear()
            growing = [tree.spec for tree in self._trees.growing]
            pending = [tree.spec for tree in self._trees.pending]
            await self._executor.receive(await self._refresher.refresh(growing, pending))
            if not self._refresher.fit:
                self._step_aside()
                continue
            await self._start_ready()
            await self._return_late()

    async def _start_ready(self) -> None:
        """Start the trees that the loaded policy may sample."""
        loaded = self._refresher.loaded
        if loaded is None or self._trees.draining:
            return
        allowed = [tree for tree in self._trees.pending if tree.spec.allows(loaded.step)]
        waves = startable(allowed, time.monotonic())
        if self._config.lockstep and waves:  # one wave at a time, and nothing kept from the last
            if self._trees.growing:
                return
            self._thread.forget()
            waves = waves[:1]
        await self._executor.start([tree for wave in waves for tree in wave])

    def _step_aside(self) -> None:
        """Return all unfinished trees: other nodes must grow them, as this engine is unproven."""
        for tree in self._trees.unfinished:
            self._executor.give_up(tree, return_reasons.UNFIT)

    async def _return_late(self) -> None:
        """Return trees whose policy has not come in time."""
        late = time.monotonic() - self._config.policy_wait_s
        loaded = self._refresher.loaded
        for tree in self._trees.pending:
            is_allowed = loaded is not None and tree.spec.allows(loaded.step)
            if tree.claimed_at < late and not is_allowed:
                await self._completer.return_tree(tree, return_reasons.POLICY)
