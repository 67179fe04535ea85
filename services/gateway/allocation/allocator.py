"""The decisions of a run's curriculum about its next training groups, each decided once (ADR 015).

A fixed curriculum needs no store. A decision of any other is stored before a tree of it is opened,
and the store answers with the valid one: an earlier gateway may have decided already. So the
allocator holds nothing but a cache of the store.
"""

import logging
from collections.abc import Sequence
from functools import partial

from banyan import registry
from banyan.draws import Draws
from banyan.errors import InvalidInput, TemporaryError, users_code, with_kind
from banyan.plugins import Allocation, Budget, Curriculum, PromptStats, traits
from banyan.recipe import Recipe
from services.gateway.allocation.allocation import check, from_wire, parts, to_wire
from services.gateway.allocation.history import History
from services.gateway.allocation.timeout import within
from services.gateway.domain.ports import Store
from services.gateway.tasks.dataset import Examples, Prompts

log = logging.getLogger(__name__)

PATIENCE_S = 60.0  # for one answer of a curriculum
RIGHT = 0.5  # rewards of at least this are successes, unless the curriculum sets another limit


class Allocator:
    """The curriculum of one run."""

    def __init__(self, store: Store, run_id: str, recipe: Recipe, examples: Examples) -> None:
        self._store, self._run_id = store, run_id
        self._recipe, self._examples = recipe, examples
        control = recipe.control
        self._curriculum: Curriculum = registry.build(
            "control", control.curriculum, control.curriculum_settings
        )
        self._fixed = bool(traits.attribute(self._curriculum, "fixed"))
        rule = "right must be a number and solved_chars a whole number"
        with users_code(
            lambda e: f"control.curriculum {control.curriculum}: {rule}: {with_kind(e)}", ()
        ):
            self._right = float(getattr(self._curriculum, "right", RIGHT))
            self._solved_chars = int(getattr(self._curriculum, "solved_chars", 0))
        self._history = History(self._right)
        self._allocations: dict[int, Allocation] = {}  # of groups that may be opened again
        self._allocated = 0  # ordinals in the history
        self._batches = 0  # batches in the history

    async def fill(self, ordinals: range, batches: int) -> list[Allocation]:
        """Return the allocations of these groups, decided on the outcomes of `batches` batches.

        They are the same at any time and in every process.
        """
        if self._fixed:
            return await self._ask(ordinals, batches) if ordinals else []
        self._allocations = {o: a for o, a in self._allocations.items() if o >= ordinals.start}
        await self._catch_up(batches)
        if ordinals.stop > self._allocated:
            await self._allocate(range(self._allocated, ordinals.stop))
        return [self._allocations[ordinal] for ordinal in ordinals]

    async def _catch_up(self, batches: int) -> None:
        while page := await self._store.read_allocations(self._run_id, self._allocated):
            for stored in page:
                self._record(stored.ordinal, from_wire(stored))
        while self._batches < batches:
            answer = await self._store.read_outcomes(
                self._run_id, self._batches, batches, self._solved_chars, self._right
            )
            for group in answer.groups:
                self._history.record_outcome(
                    group.ordinal, group.batch, group.rewards, group.lengths, group.solved
                )
            if answer.next_batch <= self._batches:
                raise TemporaryError(
                    f"the store has no outcomes of batch {self._batches} of run {self._run_id}"
                )
            self._batches = answer.next_batch

    async def _allocate(self, ordinals: range) -> None:
        decided = await self._ask(ordinals, self._batches)
        messages = [
            to_wire(ordinal, allocation, self._batches)
            for ordinal, allocation in zip(ordinals, decided, strict=True)
        ]
        for part in parts(messages):
            for stored in await self._store.put_allocations(self._run_id, part):
                self._record(stored.ordinal, from_wire(stored))

    def _record(self, ordinal: int, allocation: Allocation) -> None:
        self._history.record_allocation(ordinal, allocation.row)
        self._allocations[ordinal] = allocation
        self._allocated = ordinal + 1

    async def _ask(self, ordinals: range, batches: int) -> list[Allocation]:
        """Ask the curriculum in a thread of its own: it may read every row, or never return."""
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
        train, name = self._examples.train, control.curriculum
        stats = PromptStats(train, Prompts(self._examples), self._history.stats)
        budget = Budget(
            ordinals=ordinals,
            batches=batches,
            groups_per_batch=control.groups_per_batch,
            trees=generate.trees,
            max_new_tokens=generate.max_new_tokens,
            settings=generate.settings,
        )
        try:
            decided: Sequence[Allocation] = self._curriculum.allocate(
                stats, budget, Draws(self._recipe.seed)
            )
            return check(decided, self._recipe, budget, len(train))
        except InvalidInput:
            raise
        except BaseException as error:
            # The curriculum may be the user's own and may raise anything, SystemExit included.
            # Signals arrive in the main thread, so none is swallowed here.
            log.warning("run %s: control.curriculum %s raised", self._run_id, name, exc_info=True)
            raise InvalidInput(f"control.curriculum {name} raised {with_kind(error)}") from error
