"""Deterministic order among trees: waves start together, and trees of a wave go on together.

What runs together in the engine then depends on the trees, and not on whose answer came first
(docs/protocol.md, Deterministic runs). Answers of environments wait for each other in `acting`.
"""

import asyncio
import logging
from collections.abc import Sequence

from services.rollout.growth import return_reasons
from services.rollout.node.active_trees import ActiveTree, ActiveTrees
from services.rollout.node.step_executor import Change, StepExecutor
from services.rollout.timeouts import first

log = logging.getLogger(__name__)

WAVE_WAIT_S = 5.0  # after its last arrival, for a wave of which a dead node left only a part
_TICK_S = 1.0  # a tree that has ended meanwhile is noticed by then


class Lockstep:
    """Turns of a wave: a change to one tree waits until every growing tree has one.

    trees: trees of the node; those that grow are the wave.
    executor: executor of steps. A turn that it cannot execute returns each tree of the turn.
    """

    def __init__(self, trees: ActiveTrees, executor: StepExecutor) -> None:
        self._trees, self._executor = trees, executor
        self._changes: dict[ActiveTree, Change] = {}
        self._changed = asyncio.Event()

    async def act(self, tree: ActiveTree, change: Change) -> None:
        """Make a change with those of the other trees; return early if the tree grows no more."""
        self._changes[tree] = change
        while tree in self._changes:
            growing = self._trees.growing
            if tree not in growing:
                break
            if all(other in self._changes for other in growing):
                await self._take_turn()
            else:
                await first(self._changed, _TICK_S)
                self._changed.clear()
        self._changes.pop(tree, None)

    async def _take_turn(self) -> None:
        changes, self._changes = self._changes, {}
        self._changed.set()
        turn = sorted(changes.items(), key=lambda item: item[0].spec.order)
        try:
            await self._executor.act_all(turn)
        except Exception as error:  # of any kind: each tree of the turn must be returned
            log.exception("a turn of %d trees cannot be carried out", len(turn))
            growing = self._trees.growing
            for tree, _ in turn:
                if tree in growing:
                    self._executor.give_up(tree, return_reasons.here(error))


def startable(pending: Sequence[ActiveTree], now: float) -> list[list[ActiveTree]]:
    """Return the waves that need not wait for more trees, by name; each in its logical order.

    Trees without a wave are returned as one.
    """
    waves: dict[str, list[ActiveTree]] = {}
    for tree in pending:
        waves.setdefault(tree.wave, []).append(tree)
    ready = [trees for _, trees in sorted(waves.items()) if _is_ready(trees, now)]
    return [sorted(trees, key=lambda tree: tree.spec.order) for trees in ready]


def _is_ready(trees: Sequence[ActiveTree], now: float) -> bool:
    if not trees[0].wave or len(trees) >= trees[0].wave_size:
        return True
    return now - max(tree.claimed_at for tree in trees) > WAVE_WAIT_S
