"""Size of what a batch sampled and does not train on, as its groups teach nothing. Pure.

A loss may count it in its means, with a value of 0: then an update in which few groups teach is
smaller by as much.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from services.learner.packing.unroll import TreePart


@dataclass(frozen=True, slots=True)
class Silent:
    """Paths of groups that teach nothing.

    tokens: policy's tokens of all paths
    paths: paths with such a token
    unique: the same tokens, each counted once
    """

    tokens: float = 0.0
    paths: float = 0.0
    unique: float = 0.0

    def share(self, count: int) -> "Silent":
        """Return the part of one of so many minibatches, equal in all."""
        return Silent(self.tokens / count, self.paths / count, self.unique / count)


NONE = Silent()


def silent(parts: Iterable[TreePart]) -> Silent:
    """Return the size of trees' parts."""
    paths = [path for part in parts for path in part.paths if len(path.token_T)]
    return Silent(
        tokens=float(sum(len(path.token_T) for path in paths)),
        paths=float(len(paths)),
        unique=float(sum(path.share_T.sum() for path in paths)),
    )
