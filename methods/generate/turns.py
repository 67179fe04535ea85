"""turns: paths that fork behind the answers of an environment.

Paper: Ji et al. 2025, Tree-GRPO, arXiv 2509.21240, whose nodes are whole steps of an agent
Left out: the choice of nodes at random over rounds, which `tree-grpo` makes; here every path forks

`width` paths begin at the prompt. Behind each of its first `depth` answers a path goes on as
`branches` paths, which share all before it: the prompt, the actions, and what the tools said. A
path whose answer ends the episode does not fork, nor does one that changed something outside.
"""

from dataclasses import dataclass
from typing import ClassVar

from banyan.plugins import Branch, checks
from banyan.plugins.traits import MOST_LEAVES
from banyan.segment import Finish
from methods.generate.coroutine_policy import Growing, Growth


@dataclass(frozen=True)
class TurnForks(Growing):
    """Forks behind answers."""

    acts: ClassVar[bool] = True
    starts: int = 2
    """Paths that begin at the prompt."""
    branches: int = 2
    """Paths that go on behind an answer."""
    depth: int = 2
    """Answers of a path behind which it forks."""

    def __post_init__(self) -> None:
        checks.whole(self, ("starts", "branches"), 1, 64)
        checks.whole(self, ("depth",), 0, 16)
        if self.width > MOST_LEAVES:
            raise ValueError(
                f"{self.starts} starts that fork into {self.branches} at {self.depth} answers have"
                f" {self.width} leaves; a tree has at most {MOST_LEAVES}"
            )

    @property
    def width(self) -> int:
        """Leaves of a tree whose paths all act `depth` times."""
        return self.starts * int(self.branches**self.depth)

    async def grow(self, growth: Growth) -> None:
        """Begin the first paths."""
        for ordinal in range(growth.width(self.starts)):
            growth.start(self._path(growth, Branch(*growth.root, ordinal), 0, 0))

    async def _path(self, growth: Growth, branch: Branch, spent: int, answers: int) -> None:
        """Sample a path behind `spent` policy tokens and `answers` answers, up to its next fork."""
        if answers >= self.depth:
            await growth.path(branch, spent)
            return
        run = await growth.leg(branch, spent)
        if run.last.finish is not Finish.TOOL_CALL:
            growth.end(run)
            return
        answer = await growth.act(run)
        if growth.ended_by(answer):
            return
        branches = self.branches if growth.view.tree.forks_at(answer.id) else 1
        for ordinal in range(branches):
            onward = Branch(answer.id, len(answer), ordinal)
            growth.start(self._path(growth, onward, spent + len(run), answers + 1))
