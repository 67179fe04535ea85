"""Random groups of trees that act, as plain data: nothing of Banyan's trees or views is used.

Trees fork behind answers and inside actions; branches share answers; paths end as leaves of every
kind that the protocol knows: said to the end, at an answer that ends the episode, at one that fills
the model, at an action that no turn can follow, and at one that gets no answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

POLICY, TOOL, FORCED = "policy", "tool", "forced"
STOPPED, DONE, FULL = "stopped", "done", "full"
RENDERER, UNANSWERED, TURNS, UNSCORED = "renderer", "unanswered", "turns", "unscored"
ENDS = (STOPPED, DONE, FULL, RENDERER, UNANSWERED, TURNS, UNSCORED)
WORDS = ((1, 2), (1, 3), (2,), (3, 1, 1))
"""Tokens of answers; equal ones are equal states where answers have no anchor."""
ANCHORS = (b"", b"", b"hall", b"kitchen")
PIECES = (0.0, 0.0, 1.0, -0.5, 0.1, 0.7)


@dataclass(eq=False)
class Piece:
    """A segment.

    fork: how many tokens of the piece above it continues
    reward, anchor: of an answer
    """

    kind: str
    above: "Piece | None"
    fork: int
    tokens: tuple[int, ...]
    end: str = ""
    reward: float = 0.0
    anchor: bytes = b""
    below: list["Piece"] = field(default_factory=list)

    def path(self, end: int) -> list[tuple["Piece", int]]:
        """Return the pieces from the first one behind the prompt, each with its tokens' number."""
        found: list[tuple[Piece, int]] = []
        piece: Piece | None = self
        while piece is not None:
            found.append((piece, end))
            piece, end = piece.above, piece.fork
        return found[::-1]


@dataclass(eq=False)
class End:
    """A leaf: where it is, why the path ends, and what the other scorer says of it."""

    piece: Piece
    end: int
    why: str
    other: float

    def scored(self, other: float) -> bool:
        """True if the path has a reward, where the other scorer has this weight."""
        return self.why != UNANSWERED and not (self.why == UNSCORED and other)

    @property
    def tokens(self) -> list[tuple[Piece, int]]:
        """The tokens of its path behind the prompt: piece, and place in it."""
        return [(piece, at) for piece, end in self.piece.path(self.end) for at in range(end)]

    @property
    def earned(self) -> float:
        """The sum of the rewards of the answers on its path."""
        return sum(piece.reward for piece, _ in self.piece.path(self.end))


@dataclass(eq=False)
class PlainTree:
    """A tree.

    pieces: from above to below
    inside: places that are no leaves and have scores of their own, None where there is none
    """

    pieces: list[Piece] = field(default_factory=list)
    leaves: list[End] = field(default_factory=list)
    inside: dict[tuple[Piece, int], float | None] = field(default_factory=dict)


class Maker:
    """A maker of trees; no two tokens that the policy says are the same number.

    inside: share of the places inside paths that have scores of their own
    """

    def __init__(self, rng: np.random.Generator, inside: float) -> None:
        self.rng, self.next, self.inside = rng, 100, inside

    def group(self) -> list[PlainTree]:
        return [self.tree() for _ in range(int(self.rng.integers(1, 5)))]

    def tree(self) -> PlainTree:
        tree = PlainTree()
        for _ in range(int(self.rng.integers(1, 4))):
            self.path(tree, None, int(self.rng.integers(0, 4)))
        for place in self.places(tree):
            if self.rng.random() < self.inside:
                value = float(self.rng.choice((0.0, 1.0, 0.25)))
                tree.inside[place] = None if self.rng.random() < 0.1 else value
        return tree

    def places(self, tree: PlainTree) -> list[tuple[Piece, int]]:
        """Return the places behind what is said on the paths of a tree that are no leaves."""
        ends = {(leaf.piece, leaf.end) for leaf in tree.leaves}
        tokens = {token: None for leaf in tree.leaves for token in leaf.tokens}
        said = [(piece, at + 1) for piece, at in tokens if piece.kind != TOOL]
        return [place for place in said if place not in ends]

    def path(self, tree: PlainTree, above: Piece | None, turns: int) -> None:
        """Grow a path behind an answer or the prompt."""
        said = self.said(tree, above)
        if self.rng.random() < 0.25 and len(said.tokens) > 1:  # another path, which leaves inside
            at = int(self.rng.integers(1, len(said.tokens)))
            self.path(tree, self.add(tree, FORCED, said, at, 1), max(0, turns - 1))
        if not turns:
            self.leaf(tree, said, str(self.rng.choice((STOPPED, STOPPED, UNSCORED))))
            return
        chance = self.rng.random()
        if chance < 0.3:
            self.leaf(tree, said, (RENDERER, UNANSWERED, TURNS)[int(chance * 10)])
            return
        answer = self.answer(tree, said)
        if answer.end:
            self.leaf(tree, answer, answer.end)
            return
        for _ in range(int(self.rng.integers(1, 4))):
            self.path(tree, answer, turns - 1)

    def said(self, tree: PlainTree, above: Piece | None) -> Piece:
        """Add what the policy says at once: one piece, or two where it was cut."""
        fork = 0 if above is None else len(above.tokens)
        if self.rng.random() < 0.2:
            above = self.add(tree, POLICY, above, fork, int(self.rng.integers(1, 3)))
            above.end, fork = "cut", len(above.tokens)
        return self.add(tree, POLICY, above, fork, int(self.rng.integers(1, 4)))

    def answer(self, tree: PlainTree, action: Piece) -> Piece:
        action.end = "called"
        words = WORDS[int(self.rng.integers(len(WORDS)))]
        end = (DONE, FULL, "", "", "", "")[int(self.rng.integers(6))]
        cut = words[:1] if end == FULL else words
        answer = Piece(TOOL, action, len(action.tokens), cut, end)
        answer.reward = float(self.rng.choice(PIECES))
        answer.anchor = ANCHORS[int(self.rng.integers(len(ANCHORS)))]
        tree.pieces.append(answer)
        action.below.append(answer)
        return answer

    def add(self, tree: PlainTree, kind: str, above: Piece | None, fork: int, size: int) -> Piece:
        piece = Piece(kind, above, fork, tuple(range(self.next, self.next + size)))
        self.next += size
        tree.pieces.append(piece)
        if above is not None:
            above.below.append(piece)
        return piece

    def leaf(self, tree: PlainTree, piece: Piece, why: str) -> None:
        if piece.kind == POLICY and why in (RENDERER, TURNS):
            piece.end = "length"
        if why == UNANSWERED:
            piece.end = "called"
        other = float(self.rng.choice((0.0, 1.0, 0.25)))
        tree.leaves.append(End(piece, len(piece.tokens), why, other))


def groups(seed: int, number: int, inside: float = 0.0) -> Iterator[list[PlainTree]]:
    """Make groups of one to four trees."""
    maker = Maker(np.random.default_rng(seed), inside)
    for _ in range(number):
        yield maker.group()
