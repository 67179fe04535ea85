"""What control would do with a recipe: its own decisions on made-up rollouts, without a store, a log or a clock.

All rollouts of all open groups are sampled at once, a token a tick, and training takes no time. What the tree policy does
with the rollouts that a group gets is not seen here; services/rollout/simulation/simulate.py grows a tree (`banyan simulate`).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from banyan import registry
from banyan.draws import Draws
from banyan.errors import BanyanError, InvalidInput, with_place
from banyan.plugins import Allocation, Budget, PromptStats, width_of
from banyan.recipe import Recipe
from banyan.recipe_loader import group_scorers
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.allocation import allocation, growth_budgets
from services.gateway.allocation.history import History
from services.gateway.preview.simulated_rollouts import Chances, Rollouts
from services.gateway.runs.decide import RunFacts, decide
from services.gateway.runs.staleness_gate import Gate, GroupCounts, PolicySteps
from services.gateway.tasks import dataset as tasks

MOST_STEPS = 12
_MOST_GROUPS = 10_000  # of all steps: some seconds
_BATCHES = 4  # worth of rows, so that rows come again
_SOLVED = "made up"
_MOST_S = 30.0


@dataclass(slots=True)
class Group:
    """An open or closed group. ends: the tick at which it closes."""

    ordinal: int
    given: Allocation
    begun: int  # policy step
    last: int | None  # under which a batch may take it
    rollouts: Rollouts = field(default_factory=Rollouts)
    ends: float = 0.0
    spare: int = 0  # trees that it does without


def preview(recipe: Recipe, base: Path) -> dict[str, int | float | str]:
    """What became of the groups of the first steps, and what of control was left out. Raises InvalidInput."""
    world = SimulatedRun(recipe, base)
    while world.step < world.steps:
        world.advance()
    return world.said()


class SimulatedRun:
    """A run as far as control can tell. Rows are read only for a curriculum that looks at them."""

    def __init__(self, recipe: Recipe, base: Path) -> None:
        control = recipe.control
        self.steps = min(
            recipe.budget.steps, MOST_STEPS, max(1, _MOST_GROUPS // control.groups_per_batch)
        )
        budget = recipe.budget.model_copy(update={"steps": self.steps, "minutes": None})
        self.recipe, self.batch = (
            recipe.model_copy(update={"budget": budget}),
            control.groups_per_batch,
        )
        self.policy = registry.build("generate", recipe.generate.policy, recipe.generate.settings)
        self.rows: list[tasks.Row]
        self.curriculum = registry.build("control", control.curriculum, control.curriculum_settings)
        self.history = History(self._says("right", 0.5))
        self.fixed = fixed = bool(self._says("fixed", 0.0))
        self.deadline = time.monotonic() + _MOST_S
        most = _BATCHES * self.batch
        self.rows, self.prompts = (
            ([{}] * most, [""] * most) if fixed else _some(tasks.read(recipe, base), most)
        )
        self.chances = Chances(recipe.seed, () if fixed else self.prompts)
        self.gate, self.now, self.step, self.opened, self.dropped = Gate.of(control), 0.0, 0, 0, 0
        self.hand: list[Group] = []
        self.trained: list[tuple[int, Group]] = []  # with the step that took it
        self.carried = 0

    def _says(self, name: str, otherwise: float) -> float:
        """An attribute of the curriculum, which may be the user's own."""
        try:
            return float(getattr(self.curriculum, name, otherwise))
        except Exception as error:
            raise InvalidInput(
                f"control.curriculum {self.recipe.control.curriculum}, {name}: {with_place(error)}"
            ) from error

    def _hurry(self) -> None:
        if time.monotonic() > self.deadline:
            raise InvalidInput(
                f"control is not previewed after {_MOST_S:g} s, at step {self.step} of {self.steps}; --set fewer groups a"
                " batch, trees a group, leaves a tree or rounds of rooms"
            )

    def advance(self) -> None:
        """To the end of a step."""
        self._open()
        soonest = sorted(group.ends for group in self.hand)[: self.batch]
        self.now = max(self.now, *soonest)
        taken = [group for group in self.hand if group.ends <= self.now][: self.batch]
        for group in taken:
            self._take(group, group.rollouts)
        self.trained += [(self.step, group) for group in taken]
        self.step += 1
        stale = [group for group in self.hand if group.last is not None and group.last < self.step]
        for group in stale:
            self._take(group, Rollouts())
        self.dropped += len(stale)
        self.carried += sum(group.ends > self.now for group in self.hand)

    def _take(self, group: Group, became: Rollouts) -> None:
        self.hand.remove(group)
        solved = _SOLVED if any(reward >= self.history.right for reward in became.rewards) else ""
        self.history.became(
            group.ordinal, self.step, became.rewards, map(math.ceil, became.lengths), solved
        )

    # -- opening --

    def _open(self) -> None:
        standing = GroupCounts(
            step=self.step,
            batches=self.step,
            open=sum(group.ends > self.now for group in self.hand),
            closed=sum(group.ends <= self.now for group in self.hand),
            dropped=self.dropped,
            opened=self.opened,
            consumed=len(self.trained),
        )
        count = decide(self.recipe, RunFacts(S.RUN_STATE_TRAINING, standing)).groups
        steps = [self.gate.steps(standing, place) for place in range(count)]
        ordinals = range(self.opened, self.opened + count)
        made = [
            self._group(*each)
            for each in zip(ordinals, self._allocated(ordinals), steps, strict=True)
        ]
        if self.recipe.control.rooms:
            self._give_rooms(made)
        else:
            for group in made:
                self._sample(group)
        self.opened += count
        self.hand += made

    def _allocated(self, ordinals: range) -> list[Allocation]:
        generate = self.recipe.generate
        budget = Budget(
            ordinals,
            self.step,
            self.batch,
            generate.trees,
            generate.max_new_tokens,
            generate.settings,
        )
        stats = PromptStats(self.rows, self.prompts, self.history.stats)
        try:
            said = (
                self.curriculum.allocate(stats, budget, Draws(self.recipe.seed)) if ordinals else []
            )
        except BanyanError:
            raise
        except Exception as error:  # it may be the user's own
            raise InvalidInput(
                f"control.curriculum {self.recipe.control.curriculum}: {with_place(error)}"
            ) from error
        return allocation.check(said, self.recipe, budget, len(self.rows))

    def _group(self, ordinal: int, given: Allocation, steps: PolicySteps) -> Group:
        self.history.allocated(ordinal, given.row)
        return Group(ordinal, given, self.step, steps.last)

    def _limit(self, given: Allocation) -> int:
        return given.max_new_tokens or self.recipe.generate.max_new_tokens

    def _sample(self, group: Group) -> None:
        """A group's trees; it takes those that are ready first, or the first by number."""
        generate, control, given = self.recipe.generate, self.recipe.control, group.given
        settings = {**generate.settings, **given.settings}
        width = width_of(registry.build("generate", generate.policy, settings))
        take, group.spare = given.trees or generate.trees, control.redundancy
        limit = self._limit(given)
        trees = list[Rollouts]()
        for _ in range(take + group.spare):
            self._hurry()
            trees.append(self.chances.rollouts(given.row, width, limit))
        if control.redundancy_debias == "none":
            trees.sort(key=lambda tree: max(tree.lengths))
        for tree in trees[:take]:
            group.rollouts.add(tree)
        group.ends = self.now + max(group.rollouts.lengths)

    def _give_rooms(self, made: Sequence[Group]) -> None:
        """Rounds of groups that are opened together, until all rooms are final."""
        control, by_ordinal = self.recipe.control, {group.ordinal: group for group in made}
        share = registry.build("rooms", control.rooms, control.rooms_settings)
        rule, begun = (
            growth_budgets.GrowthBudgets(share, self.batch, int(self.policy.most)),
            int(self.policy.start),
        )
        stand = {o: growth_budgets.Grant(o.to_bytes(8), begun, False, 0) for o in by_ordinal}
        due = [list(stand.values())] if stand else []
        while due:
            for grants in due:
                self._round(
                    [(by_ordinal[int.from_bytes(grant.tree_id)], grant) for grant in grants]
                )
                stand |= {int.from_bytes(grant.tree_id): grant for grant in grants}
            due = list(
                rule.grants(
                    [_standing(by_ordinal[o], grant) for o, grant in stand.items()]
                ).values()
            )

    def _round(self, granted: Sequence[tuple[Group, growth_budgets.Grant]]) -> None:
        """Samples what groups were given; as long as the longest path of all, for which they wait."""
        longest = 0.0
        self._hurry()
        for group, grant in granted:
            more = grant.leaves - len(group.rollouts.rewards)
            new = self.chances.rollouts(group.given.row, more, self._limit(group.given))
            group.rollouts.add(new)
            longest = max(longest, *new.lengths, 0.0)
        for group, _ in granted:
            group.ends = max(self.now, group.ends) + longest

    # -- what came of it --

    def said(self) -> dict[str, int | float | str]:
        """In numbers, and in words what was left out."""
        taken = [group for _, group in self.trained]
        counts = [len(group.rollouts.rewards) for group in taken]
        found: dict[str, int | float | str] = {
            "steps": self.step,
            **({} if self.fixed else {"rows": len(self.rows)}),
            "groups_opened": self.opened,
            "groups_trained": len(taken),
            "groups_dropped": self.dropped,
            "groups_carried_over_per_step": self.carried / self.step,
            "oldest_in_steps": max(step - group.begun for step, group in self.trained),
            "ticks_per_step": self.now / self.step,
            "rollouts_per_group": sum(counts) / len(counts),
            "rollouts_least": min(counts),
            "rollouts_most": max(counts),
            "groups_with_right_and_wrong": sum(len(set(g.rollouts.rewards)) > 1 for g in taken)
            / len(taken),
        }
        if self.recipe.control.redundancy:
            found["trees_given_up"] = sum(group.spare for group in taken)
        if any(group.given.max_new_tokens for group in taken):
            found["groups_with_shorter_paths"] = sum(
                group.given.max_new_tokens is not None for group in taken
            )
        if any(group.given.messages for group in taken):
            found["groups_with_solved_examples"] = sum(
                bool(group.given.messages) for group in taken
            )
        why = [group.given.why for group in taken if group.given.why]
        if why:
            found["last_reason"] = "".join(c if c.isprintable() else " " for c in why[-1])
        found["not_simulated"] = "; ".join(self._left_out())
        return found

    def _left_out(self) -> list[str]:
        out = [] if self.fixed else [f"other rows than {len(self.rows)}"]
        out.append("rewards are drawn, each row with a chance that stays: nothing is learnt")
        if not hasattr(self.policy, "width") and not self.recipe.control.rooms:
            out.append(
                f"generate.policy {self.recipe.generate.policy} names no width: one rollout a tree is drawn"
            )
        if self.recipe.replay is not None:
            out.append("replay, which is the learner's: no batch holds older groups")
        if voting := group_scorers.scorers(self.recipe.filter):
            out.append(f"filter {voting[0]}: no votes are counted")
        if getattr(self.policy, "needs_scores", False):
            out.append(
                f"generate.policy {self.recipe.generate.policy} goes on by scores: rollouts are its first ones"
            )
        return out


def _some(rows: tasks.Examples, most: int) -> tuple[list[tasks.Row], list[str]]:
    """So many of the rows, from all over, with their prompts."""
    count, prompts = len(rows.train), tasks.Prompts(rows)
    chosen = range(count) if count <= most else [count * i // most for i in range(most)]
    return [rows.train[i] for i in chosen], [prompts[i] for i in chosen]


def _standing(group: Group, room: growth_budgets.Grant) -> growth_budgets.TreeBudget:
    rewards = group.rollouts.rewards
    return growth_budgets.TreeBudget(
        room.tree_id,
        group.ordinal,
        not room.final,
        room.leaves,
        room.round,
        room.final,
        len(rewards),
        rewards,
    )
