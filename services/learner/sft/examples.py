"""Examples of a warm start as parts of packed sequences: rows, and paths of stored trees. Pure.

A row is a tree of one node. Of a stored tree the chosen paths are unrolled together, so tokens that
they share are computed once; each path counts in full in the loss, as if it were a row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from banyan.errors import InvalidInput
from banyan.segment import IntTokens
from banyan.view import TreeView
from services.learner.packing import unroll
from services.learner.packing.unroll import Bools, Ints, Path, TreePart


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to learn from.

    name: its place, for messages
    key: examples of one key are on the same side of the held-out split
    parts: its tokens, and those that are trained
    """

    name: str
    key: bytes
    parts: tuple[TreePart, ...]

    @property
    def longest(self) -> int:
        """Tokens of its longest path."""
        return max(int(part.position_U.max(initial=-1)) + 1 for part in self.parts)


def of_row(name: str, key: bytes, token_T: IntTokens, trained_T: Bools) -> Example:
    """Return the example of a row.

    trained_T: true for tokens that the loss is taken on; the first one is never trained, as
        nothing predicts it
    """
    places = np.flatnonzero(trained_T[1:]) + 1
    node_U = np.zeros(len(token_T), np.int64)
    part = TreePart(
        token_U=token_T.astype(np.int64),
        position_U=np.arange(len(token_T), dtype=np.int64),
        enter_U=node_U,
        leave_U=node_U,
        paths=(_taught(places - 1, token_T[places].astype(np.int64)),),
    )
    return Example(name, key, (part,))


def of_tree(name: str, key: bytes, view: TreeView, leaves: Sequence[int], budget: int) -> Example:
    """Return the example of the paths of a tree's `leaves`.

    Only what the policy sampled is trained; prompts, answers of tools and forced tokens are
    context.

    budget: most tokens of a part; 0 for a part a path
    """
    leaf_L = np.full(len(view.leaves_L), np.nan)
    leaf_L[list(leaves)] = 1.0
    runs = unroll.divide(view, leaves, budget)
    parts = (unroll.unroll(view, run, leaf_L, None, b"") for run in runs)
    return Example(name, key, tuple(_plain(part) for part in parts))


def _plain(part: TreePart) -> TreePart:
    """Return the part without what was recorded at sampling, such as its temperature."""
    paths = (_taught(path.predictor_T, path.token_T) for path in part.paths)
    return replace(part, paths=tuple(paths))


def _taught(predictor_T: Ints, token_T: Ints) -> Path:
    """Return a path whose tokens all have advantage 1 at temperature 1."""
    ones_T, zeros_T = np.ones(len(token_T)), np.zeros(len(token_T))
    return Path(
        predictor_T=predictor_T,
        token_T=token_T,
        temperature_T=ones_T,
        behaviour_T=zeros_T,
        drawn_T=zeros_T,
        foreign_T=np.zeros(len(token_T), np.bool_),
        advantage_T=ones_T,
        share_T=ones_T,
        origin_T=np.zeros(len(token_T), np.int64),
    )


def refuse_long(examples: Iterable[Example], most: int) -> None:
    """Raise InvalidInput that names an example beyond the model's context, of `most` tokens.

    most: 0 for no limit
    """
    long = [example for example in examples if most and example.longest > most]
    if long:
        others = f", and {len(long) - 1} more are too long" if len(long) > 1 else ""
        raise InvalidInput(
            f"{long[0].name} has {long[0].longest} tokens, and the model's context holds {most}"
            f"{others}; shorten or remove them, nothing is cut"
        )


def parts_of(examples: Iterable[Example]) -> list[TreePart]:
    """Return the parts that train something, in order."""
    parts = (part for example in examples for part in example.parts)
    return [part for part in parts if any(len(path.token_T) for path in part.paths)]


def trained_tokens(parts: Iterable[TreePart]) -> int:
    """Return the trained path tokens of parts."""
    return sum(len(path.token_T) for part in parts for path in part.paths)
