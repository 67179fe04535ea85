"""Independent samples in steps, and names of the states that steps are taken in.

The control of the experiment `trees`: credit by step without any tree. Paths are those of `iid`,
but each operation is a segment of its own; a state is an operation's number with the digit that it
goes on from, so that paths of one prompt meet in states as an agent's paths meet in rooms.
"""

from dataclasses import dataclass

from banyan.facts import Facts
from banyan.plugins import Branch, Expansion
from banyan.segment import Finish, Kind
from banyan.tree import Tree
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.cuts import upto


@dataclass(frozen=True)
class Stepwise(Growing):
    """Settings. width: leaves of a tree; step: tokens of a segment."""

    width: int = 8
    step: int = 6

    async def grow(self, growth: Growth) -> None:
        """Sample all paths at once, segment by segment."""
        for ordinal in range(growth.width(self.width)):
            growth.start(self._path(growth, Branch(*growth.root, ordinal)))

    async def _path(self, growth: Growth, branch: Branch) -> None:
        tokens, most = 0, growth.view.max_path_tokens
        while True:
            sampling = upto(growth.view.sampling, min(self.step, most - tokens))
            run = await growth.run(Expansion(branch, sampling))
            tokens += len(run)
            if run.last.finish is Finish.STOP or tokens >= most:
                growth.end(run)
                return
            branch = Branch(run.last.id, len(run.last), 0)


def states(tree: Tree, step: int = 6) -> Facts:
    """Return the state of each segment: the number of its operation, and its first letter.

    An operation is written from the digit that it goes on from, which follows from the one before;
    a first letter that is none is a state of its own.
    """
    named = {}
    for segment in tree:
        if segment.kind is Kind.POLICY:
            number = (tree.answer_length(segment.id, len(segment)) - len(segment)) // step
            before = tree.segments[segment.parent].text if number else ""
            named[segment.id] = {"state": f"{number} {before[-1:]}"}
    return Facts(named=named)
