"""Arms on the small chain policy of the experiment `trees`, for claims about learning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.harness.kept import Cell
from bench.trees import arms, policy
from bench.trees.arms import Setting, Task
from bench.trees.process import Counts, InProcess

TASK = Task(8)
GROUPS, RATE = 16, 2e-4


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A recipe on chains.

    width: leaves of a prompt
    generate: part of the recipe; independent samples by default
    changes: other parts of the recipe
    """

    width: int
    advantage: str = "grpo"
    generate: Mapping[str, Any] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def process(self, seed: int) -> InProcess:
        """Return its run in this process."""
        policy_there()
        grown = dict(self.generate or arms.iid(TASK, self.width))
        arm = arms.Arm("claims", lambda task, leaves: grown, self.advantage)
        made = arms.recipe(arm, TASK, Setting(GROUPS, self.width, RATE), seed)
        return InProcess(type(made).model_validate(made.model_dump() | dict(self.changes)))


def policy_there() -> None:
    """Make the policy that all arms begin with, if it is not there."""
    policy.main()


def learnt(arm: Arm, seed: int, enough: Callable[[int, Counts], bool]) -> Cell:
    """Return the accuracy of an arm after so many updates, and what these took."""
    process, spent, number = arm.process(seed), Counts(), 0
    before = process.accuracy()
    while not enough(number, spent):
        spent.add(process.step(number))
        number += 1
    return {
        "before": before,
        "after": process.accuracy(),
        "updates": number,
        "sampled": spent.sampled,
        "leaves": spent.leaves,
    }
