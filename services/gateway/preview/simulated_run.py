"""A run as far as control can tell, on made-up rollouts.

All rollouts of all open groups are sampled at once, a token a tick, and training takes no time.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from banyan import registry
from banyan.draws import Draws
from banyan.errors import InvalidInput, users_code, with_place
from banyan.plugins import Allocation, Budget, PromptStats, traits
from banyan.recipe import Recipe
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.allocation.allocation import check
from services.gateway.allocation.growth_budgets import Grant, GrowthBudgets, TreeBudget
from services.gateway.allocation.history import History
from services.gateway.preview.simulated_rollouts import Chances, Rollouts
from services.gateway.runs.decide import RunFacts, decide
from services.gateway.runs.staleness_gate import Gate, GroupCounts, PolicySteps
from services.gateway.tasks import dataset

MOST_STEPS = 12
_MOST_GROUPS = 10_000  # of all steps: some seconds
_BATCHES = 4  # batches' worth of rows, so that rows come again
_SOLVED = "made up"
_MOST_S = 30.0


@dataclass(slots=True)
class Group:
    """An open or closed group.

    ordinal: of the group.
    allocation: the curriculum's decision about it.
    begun: policy step at which it was opened.
    last: newest policy step under which a batch may take it; None for any.
    rollouts: of all its trees.
    ends: tick at which it closes.
    spare: trees opened beyond those that it takes.
    """

    ordinal: int
    allocation: Allocation
    begun: int
    last: int | None
    rollouts: Rollouts = field(default_factory=Rollouts)
    ends: float = 0.0
    spare: int = 0


class SimulatedRun:
    """A run of a few steps. Rows are read only for a curriculum that depends on them."""

    def __init__(self, recipe: Recipe, base: Path) -> None:
        control, generate = recipe.control, recipe.generate
        self.batch = control.groups_per_batch
        self.steps = min(recipe.budget.steps, MOST_STEPS, max(1, _MOST_GROUPS // self.batch))
        budget = recipe.budget.model_copy(update={"steps": self.steps, "minutes": None})
        self.recipe = recipe.model_copy(update={"budget": budget})
        self.tree_policy = registry.build("generate", generate.policy, generate.settings)
        self.curriculum = registry.build("control", control.curriculum, control.curriculum_settings)
        self.history = History(self._number("right", 0.5))
        self.fixed = bool(self._number("fixed", 0.0))
        self.deadline = time.monotonic() + _MOST_S
        most = _BATCHES * self.batch
        self.rows: list[dataset.Row] = [{}] * most
        self.prompts = [""] * most
        if not self.fixed:
            self.rows, self.prompts = _sample_rows(dataset.read(recipe, base), most)
        self.chances = Chances(recipe.seed, () if self.fixed else self.prompts)
        self.gate = Gate.of(control)
        self.now = 0.0  # ticks
        self.step = self.opened = self.dropped = 0
        self.in_hand: list[Group] = []
        self.trained: list[tuple[int, Group]] = []  # with the step that took it
        self.carried = 0

    def _number(self, name: str, default: float) -> float:
        """Return a numeric attribute of the curriculum."""
        of = f"control.curriculum {self.recipe.control.curriculum}, {name}"
        with users_code(lambda error: f"{of}: {with_place(error)}", passing=()):
            return float(getattr(self.curriculum, name, default))

    def _check_deadline(self) -> None:
        if time.monotonic() > self.deadline:
            raise InvalidInput(
                f"control is not previewed after {_MOST_S:g} s, at step {self.step} of"
                f" {self.steps}; --set fewer groups a batch, trees a group, leaves a tree or"
                " rounds of growth budgets"
            )

    def advance(self) -> None:
        """Go to the end of a step."""
        self._open()
        soonest = sorted(group.ends for group in self.in_hand)[: self.batch]
        self.now = max(self.now, *soonest)
        closed = [group for group in self.in_hand if group.ends <= self.now]
        batch = closed[: self.batch]
        for group in batch:
            self._remove(group, group.rollouts)
        self.trained += [(self.step, group) for group in batch]
        self.step += 1
        stale = [g for g in self.in_hand if g.last is not None and g.last < self.step]
        for group in stale:
            self._remove(group, Rollouts())
        self.dropped += len(stale)
        self.carried += sum(group.ends > self.now for group in self.in_hand)

    def _remove(self, group: Group, outcome: Rollouts) -> None:
        self.in_hand.remove(group)
        solved = any(reward >= self.history.right for reward in outcome.rewards)
        self.history.record_outcome(
            group.ordinal,
            self.step,
            rewards=outcome.rewards,
            lengths=map(math.ceil, outcome.lengths),
            solved=_SOLVED if solved else "",
        )

    # -- opening --

    def _open(self) -> None:
        counts = GroupCounts(
            step=self.step,
            batches=self.step,
            open=sum(group.ends > self.now for group in self.in_hand),
            closed=sum(group.ends <= self.now for group in self.in_hand),
            dropped=self.dropped,
            opened=self.opened,
            consumed=len(self.trained),
        )
        number = decide(self.recipe, RunFacts(S.RUN_STATE_TRAINING, counts)).groups
        ordinals = range(self.opened, self.opened + number)
        groups = [
            self._group(ordinal, allocation, self.gate.steps(counts, position))
            for position, (ordinal, allocation) in enumerate(
                zip(ordinals, self._allocations(ordinals), strict=True)
            )
        ]
        if self.recipe.control.rooms:
            self._grow_in_rounds(groups)
        else:
            for group in groups:
                self._sample(group)
        self.opened += number
        self.in_hand += groups

    def _allocations(self, ordinals: range) -> list[Allocation]:
        generate = self.recipe.generate
        budget = Budget(
            ordinals=ordinals,
            batches=self.step,
            groups_per_batch=self.batch,
            trees=generate.trees,
            max_new_tokens=generate.max_new_tokens,
            settings=generate.settings,
        )
        stats = PromptStats(self.rows, self.prompts, self.history.stats)
        allocations: Sequence[Allocation] = []
        of = f"control.curriculum {self.recipe.control.curriculum}"
        with users_code(lambda error: f"{of}: {with_place(error)}"):
            if ordinals:
                allocations = self.curriculum.allocate(stats, budget, Draws(self.recipe.seed))
        return check(allocations, self.recipe, budget, len(self.rows))

    def _group(self, ordinal: int, allocation: Allocation, steps: PolicySteps) -> Group:
        self.history.record_allocation(ordinal, allocation.row)
        return Group(ordinal=ordinal, allocation=allocation, begun=self.step, last=steps.last)

    def _limit(self, allocation: Allocation) -> int:
        return allocation.max_new_tokens or self.recipe.generate.max_new_tokens

    def _sample(self, group: Group) -> None:
        """Sample a group's trees; it takes those that are ready first, or the first by number."""
        generate, control = self.recipe.generate, self.recipe.control
        allocation = group.allocation
        settings: Mapping[str, Any] = {**generate.settings, **allocation.settings}
        width = traits.of_policy(registry.build("generate", generate.policy, settings)).width
        needed = allocation.trees or generate.trees
        group.spare = control.redundancy
        trees = list[Rollouts]()
        for _ in range(needed + group.spare):
            self._check_deadline()
            trees.append(self.chances.rollouts(allocation.row, width, self._limit(allocation)))
        if control.redundancy_debias == "none":
            trees.sort(key=lambda tree: max(tree.lengths))
        for tree in trees[:needed]:
            group.rollouts.add(tree)
        group.ends = self.now + max(group.rollouts.lengths)

    def _grow_in_rounds(self, groups: Sequence[Group]) -> None:
        """Grow groups that are opened together in rounds, until all growth budgets are final."""
        control = self.recipe.control
        by_ordinal = {group.ordinal: group for group in groups}
        share = registry.build("rooms", control.rooms, control.rooms_settings)
        budgets = GrowthBudgets(share, self.batch, int(self.tree_policy.most))
        grants = {
            ordinal: Grant(
                ordinal.to_bytes(8), leaves=int(self.tree_policy.start), final=False, round=0
            )
            for ordinal in by_ordinal
        }
        due = [list(grants.values())] if grants else []
        while due:
            for block in due:
                granted = {int.from_bytes(grant.tree_id): grant for grant in block}
                self._round([(by_ordinal[ordinal], grant) for ordinal, grant in granted.items()])
                grants |= granted
            trees = [_tree_budget(by_ordinal[ordinal], grant) for ordinal, grant in grants.items()]
            due = list(budgets.grants(trees).values())

    def _round(self, granted: Sequence[tuple[Group, Grant]]) -> None:
        """Sample the granted leaves. All groups wait for the longest path of the round."""
        longest = 0.0
        self._check_deadline()
        for group, grant in granted:
            allocation = group.allocation
            more = grant.leaves - len(group.rollouts.rewards)
            new = self.chances.rollouts(allocation.row, more, self._limit(allocation))
            group.rollouts.add(new)
            longest = max(longest, *new.lengths, 0.0)
        for group, _ in granted:
            group.ends = max(self.now, group.ends) + longest


def _sample_rows(examples: dataset.Examples, most: int) -> tuple[list[dataset.Row], list[str]]:
    """Return at most so many rows, evenly spaced, with their prompts."""
    count, prompts = len(examples.train), dataset.Prompts(examples)
    chosen = range(count) if count <= most else [count * i // most for i in range(most)]
    return [examples.train[i] for i in chosen], [prompts[i] for i in chosen]


def _tree_budget(group: Group, grant: Grant) -> TreeBudget:
    rewards = group.rollouts.rewards
    return TreeBudget(
        tree_id=grant.tree_id,
        ordinal=group.ordinal,
        growing=not grant.final,
        granted=grant.leaves,
        round=grant.round,
        final=grant.final,
        ended=len(rewards),
        rewards=rewards,
    )
