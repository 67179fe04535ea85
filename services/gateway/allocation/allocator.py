"""What the next training groups get: asks the run's curriculum, and sees to it that what it said once holds.

A fixed curriculum needs no store. What any other decides is stored before a tree of it is opened, and the store answers
with what holds: an earlier gateway may have decided already. So this keeps nothing but a cache of what the store says.
"""

import logging
from collections.abc import Sequence
from functools import partial

from banyan import registry
from banyan.draws import Draws
from banyan.errors import InvalidInput, TemporaryError
from banyan.plugins import Allocation, Budget, Curriculum, PromptStats
from banyan.recipe import Recipe
from services.gateway.allocation.allocation import check, from_wire, parts, to_wire
from services.gateway.allocation.history import History
from services.gateway.allocation.timeout import within
from services.gateway.domain.ports import Store
from services.gateway.tasks.dataset import Examples, Prompts

log = logging.getLogger(__name__)

PATIENCE_S = 60.0  # for one answer of a curriculum
RIGHT = 0.5  # rewards of at least this are successes where the curriculum says nothing


class Allocator:
    """The curriculum of one run."""

    def __init__(self, store: Store, run_id: str, recipe: Recipe, rows: Examples) -> None:
        self._store, self._run_id, self._recipe, self._rows = store, run_id, recipe, rows
        control = recipe.control
        self._curriculum: Curriculum = registry.build(
            "control", control.curriculum, control.curriculum_settings
        )
        self._fixed = bool(getattr(self._curriculum, "fixed", False))
        try:
            self._right = float(getattr(self._curriculum, "right", RIGHT))
            self._solved_chars = int(getattr(self._curriculum, "solved_chars", 0))
        except Exception as error:
            what = "right must be a number and solved_chars a whole number"
            raise InvalidInput(
                f"control.curriculum {control.curriculum}: {what}: {error}"
            ) from error
        self._history = History(self._right)
        self._held: dict[int, Allocation] = {}  # of groups that may be opened again
        self._allocated = 0  # ordinals that the history knows
        self._batches = 0  # batches that it knows

    async def fill(self, ordinals: range, batches: int) -> list[Allocation]:
        """What these groups get; the same at any time and in every process. Decides on the outcomes of `batches` batches."""
        if self._fixed:
            return await self._decided(ordinals, batches) if ordinals else []
        self._held = {ordinal: a for ordinal, a in self._held.items() if ordinal >= ordinals.start}
        await self._catch_up(batches)
        if ordinals.stop > self._allocated:
            await self._allocate(range(self._allocated, ordinals.stop))
        return [self._held[ordinal] for ordinal in ordinals]

    async def _catch_up(self, batches: int) -> None:
        while found := await self._store.read_allocations(self._run_id, self._allocated):
            for stored in found:
                self._take(stored.ordinal, from_wire(stored))
        while self._batches < batches:
            answer = await self._store.read_outcomes(
                self._run_id, self._batches, batches, self._solved_chars, self._right
            )
            for group in answer.groups:
                self._history.became(
                    group.ordinal, group.batch, group.rewards, group.lengths, group.solved
                )
            if answer.next_batch <= self._batches:
                raise TemporaryError(
                    f"the store says nothing of batch {self._batches} of run {self._run_id}"
                )
            self._batches = answer.next_batch

    async def _allocate(self, ordinals: range) -> None:
        decided = await self._decided(ordinals, self._batches)
        asked = [
            to_wire(o, allocation, self._batches)
            for o, allocation in zip(ordinals, decided, strict=True)
        ]
        for part in parts(asked):
            for stored in await self._store.put_allocations(self._run_id, part):
                self._take(stored.ordinal, from_wire(stored))

    def _take(self, ordinal: int, allocation: Allocation) -> None:
        self._history.allocated(ordinal, allocation.row)
        self._held[ordinal] = allocation
        self._allocated = ordinal + 1

    async def _decided(self, ordinals: range, batches: int) -> list[Allocation]:
        """In a thread of its own: it may look at every row, and a user's may never come back."""
        try:
            return await within(
                PATIENCE_S, partial(self._decide, ordinals, batches), f"curriculum-{self._run_id}"
            )
        except TimeoutError:
            name = self._recipe.control.curriculum
            raise InvalidInput(
                f"control.curriculum {name} gave no answer within {PATIENCE_S:g} s"
            ) from None

    def _decide(self, ordinals: range, batches: int) -> list[Allocation]:
        generate, control = self._recipe.generate, self._recipe.control
        stats = PromptStats(self._rows.train, Prompts(self._rows), self._history.stats)
        budget = Budget(
            ordinals,
            batches,
            control.groups_per_batch,
            generate.trees,
            generate.max_new_tokens,
            generate.settings,
        )
        try:
            decided: Sequence[Allocation] = self._curriculum.allocate(
                stats, budget, Draws(self._recipe.seed)
            )
            return check(decided, self._recipe, budget, len(self._rows.train))
        except InvalidInput:
            raise
        except BaseException as error:
            # the curriculum may be the user's own; signals go to another thread
            log.warning(
                "run %s: control.curriculum %s raised",
                self._run_id,
                control.curriculum,
                exc_info=True,
            )
            cause = (
                f"control.curriculum {control.curriculum} raised {type(error).__name__}: {error}"
            )
            raise InvalidInput(cause) from error
