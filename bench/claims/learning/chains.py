"""Arms on the small chain policy of the experiment `trees`, for claims about learning."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from banyan.recipe import Recipe
from bench.harness.kept import Cell
from bench.trees import arms, policy
from bench.trees.arms import Setting, Task
from bench.trees.process import Counts, InProcess

TASK = Task(8)
GROUPS, RATE = 16, 2e-4
ON = "chains of 8 operations, the small policy of `trees`"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A recipe on chains.

    width: leaves of a prompt
    groups: prompts of an update
    generate: part of the recipe; independent samples by default
    changes: settings in other parts of the recipe
    task: what is asked
    """

    width: int
    groups: int = GROUPS
    rate: float = RATE
    advantage: str = "grpo"
    generate: Mapping[str, Any] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    task: Task = TASK

    def recipe(self, seed: int, model: Path | None = None) -> Recipe:
        """Return its recipe.

        model: folder of another policy to begin with
        """
        policy_there()
        grown = dict(self.generate or arms.iid(self.task, self.width))
        arm = arms.Arm("claims", lambda task, leaves: grown, self.advantage)
        setting = Setting(self.groups, self.width, self.rate)
        made = arms.recipe(arm, self.task, setting, seed).model_dump()
        changes = {**self.changes, **({"model": str(model)} if model else {})}
        return Recipe.model_validate(made | {k: _over(made[k], v) for k, v in changes.items()})

    def process(self, seed: int, model: Path | None = None) -> InProcess:
        """Return its run in this process."""
        return InProcess(self.recipe(seed, model))


def _over(part: Any, change: Any) -> Any:
    """Return a part of a recipe with changed settings."""
    both = isinstance(part, Mapping) and isinstance(change, Mapping)
    return {**part, **change} if both else change


def policy_there() -> None:
    """Make the policy that all arms begin with, if it is not there."""
    policy.main()


def learnt(
    process: InProcess,
    enough: Callable[[int, Counts], bool],
    acts: Collection[str] = (),
    tested: Callable[[InProcess], float] = InProcess.accuracy,
) -> Cell:
    """Return the accuracy of a run after so many updates, and what these took.

    tested: returns the accuracy, of greedy answers by default
    acts: metrics whose sums over the updates say what its method did
    """
    spent, number = Counts(), 0
    sums = dict.fromkeys(acts, 0.0)
    before = tested(process)
    while not enough(number, spent):
        spent.add(process.step(number))
        number += 1
        for name in acts:
            sums[name] += metric(process, name)
    return {
        "before": before,
        "after": tested(process),
        "updates": number,
        "sampled": spent.sampled,
        "leaves": spent.leaves,
        "processor_s": spent.processor_s,
        "acts": sums,
    }


def nearest(tokens: int) -> Callable[[int, Counts], bool]:
    """Return whether so many sampled tokens are spent, as nearly as whole updates can."""
    return lambda updates, spent: bool(updates) and spent.sampled * (1 + 0.5 / updates) > tokens


def metric(process: InProcess, name: str) -> float:
    """Return a metric of a run's last update; 0 if nothing in it has one."""
    assert process.update is not None, "a step was taken"
    return process.update.metrics().get(name, 0.0)
