"""What the next training groups get: asks the run's curriculum, and sees to it that what it says holds."""

from collections.abc import Sequence

from banyan import registry
from banyan.draws import Draws
from banyan.errors import NotReady
from banyan.plugins import Allocation, Budget, Curriculum, PromptStats
from banyan.recipe import Recipe
from services.gateway.control.allocation import check
from services.gateway.rows import Prompts, Rows


class Allocator:
    """The curriculum of one run."""

    def __init__(self, recipe: Recipe, rows: Rows) -> None:
        self._recipe, self._rows = recipe, rows
        self._curriculum: Curriculum = registry.build(
            "control", recipe.control.curriculum, recipe.control.curriculum_settings
        )

    async def fill(self, ordinals: range, batches: int) -> list[Allocation]:
        """What these groups get; the same at any time and in every process."""
        if not getattr(self._curriculum, "fixed", False):
            raise NotReady(f"control.curriculum {self._recipe.control.curriculum} decides by facts, which come next")
        return self._decide(PromptStats(self._rows.train, Prompts(self._rows)), ordinals, batches)

    def _decide(self, stats: PromptStats, ordinals: range, batches: int) -> list[Allocation]:
        generate, control = self._recipe.generate, self._recipe.control
        budget = Budget(
            ordinals, batches, control.groups_per_batch, generate.trees, generate.max_new_tokens, generate.settings
        )
        decided: Sequence[Allocation] = self._curriculum.allocate(stats, budget, Draws(self._recipe.seed))
        return check(decided, self._recipe, budget, len(self._rows.train))
