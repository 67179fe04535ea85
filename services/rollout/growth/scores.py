"""Scores of leaves, as a tree policy that waits for them needs them."""

from collections.abc import Iterable
from dataclasses import dataclass

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire


@dataclass(frozen=True, slots=True)
class TextRepair:
    """A scorer's repair of a completion, in characters.

    keep: characters of the completion that are right.
    text: the step that should follow them.
    step: number of the first wrong step, from 1.
    steps: number of steps in the completion.
    """

    keep: int
    text: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class LeafScore:
    """The score of one leaf by one scorer.

    leaf: the leaf.
    scorer: name of the scorer.
    value: the score; None where the scorer found the leaf unscorable.
    repair: how the completion could be put right; None where the scorer does not know.
    version: version of the scorer.
    """

    leaf: Leaf
    scorer: str
    value: float | None
    repair: TextRepair | None = None
    version: str = ""


def from_wire(scores: Iterable[tree_pb2.ScoredLeaf]) -> list[LeafScore]:
    """Read the scores of a stored tree."""
    return [_score(scored) for scored in scores]


def _score(scored: tree_pb2.ScoredLeaf) -> LeafScore:
    score = scored.score
    repair = None
    if score.HasField("repair"):
        wire = score.repair
        repair = TextRepair(keep=wire.keep, text=wire.text, step=wire.step, steps=wire.steps)
    return LeafScore(
        leaf=leaf_from_wire(scored.leaf),
        scorer=scored.scorer,
        value=score.value if score.state == tree_pb2.SCORE_STATE_SCORED else None,
        repair=repair,
        version=scored.scorer_version,
    )
