"""GiGPO and HGPO as their papers have them, over plain trees: the reference of turns' credit.

A step is what a path says up to and with the next answer. It begins behind the prompt, behind an
answer, where scored paths of its tree part or end, and at a place with a score of its own, which it
then earns (ADR 021, 042). Its state is the anchor of the
answer before it, or that answer's tokens, or the prompt, or else a place that no other step has
(ADR 067). A path's reward is the mean of its scorers by weight; each answer's part of it belongs to
the step that ends with that answer, and the rest to the last one. Numbers are fractions, so that
equal returns are equal.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

from tests.learner.credit.plain_groups import POLICY, TOOL, End, PlainTree

Token = tuple[int, int]
"""A token: the number of its piece in Python's memory, and its place."""


@dataclass
class Row:
    """A step of a path.

    acts: whether the policy says something in it; else it takes no time and has no advantage
    answers: whether it begins with the answer to the action before, in whose time it is
    back: its return
    total: reward of its path
    """

    tokens: list[Token]
    state: Hashable
    earned: Fraction = Fraction(0)
    back: Fraction = Fraction(0)
    total: Fraction = Fraction(0)
    advantage: float = 0.0
    acts: bool = False
    answers: bool = False


def rows_of(
    tree: PlainTree, weights: tuple[float, float], gamma: float, turns: bool = True
) -> dict[End, list[Row]]:
    """Cut the scored paths of a tree into steps.

    weights: of the environment's scorer, and of the other one; the divisor leaves penalties out.
    turns: whether a step begins behind an answer
    """
    own = {(id(piece), end - 1): value for (piece, end), value in tree.inside.items()}
    scored = [
        leaf
        for leaf in tree.leaves
        if leaf.scored(weights[1])
        and all(own.get((id(piece), at), 0.0) is not None for piece, at in leaf.tokens)
    ]
    after: dict[Token | None, set[Token | None]] = defaultdict(set)
    for leaf in scored:
        line = [(id(piece), at) for piece, at in leaf.tokens]
        for one, two in zip([None, *line], [*line, None], strict=True):
            after[one].add(two)
    parting = {token for token, nexts in after.items() if len(nexts) > 1}
    earned = {token: Fraction(value) for token, value in own.items() if value is not None}
    return {leaf: _rows(leaf, parting, earned, weights, gamma, turns) for leaf in scored}


def _rows(
    leaf: End,
    parting: set[Token | None],
    own: Mapping[Token | None, Fraction],
    weights: tuple[float, float],
    gamma: float,
    turns: bool,
) -> list[Row]:
    rows: list[Row] = []
    before: Token | None = None
    piece_before = None
    parts = [Fraction(w) / sum(Fraction(w) for w in weights if w > 0) for w in weights]
    for piece, at in leaf.tokens:
        token = (id(piece), at)
        answered = piece_before is not None and piece_before.kind == TOOL and piece.kind != TOOL
        if before is None:
            rows.append(Row([], "the prompt"))
        elif answered and turns:
            assert piece_before is not None
            state = piece_before.anchor or piece_before.tokens
            rows.append(Row([], ("answered", state)))
        elif before in parting or before in own:
            rows.append(Row([], before))
        if not rows[-1].tokens:
            rows[-1].answers = piece.kind == TOOL
        rows[-1].tokens.append(token)
        rows[-1].acts |= piece.kind == POLICY
        if piece.kind == TOOL and at == 0:
            rows[-1].earned += parts[0] * Fraction(piece.reward)
        rows[-1].earned += own.get(token, 0)
        before, piece_before = token, piece
    earned = sum(Fraction(p.reward) for p, _ in leaf.piece.path(leaf.end) if p.kind == TOOL)
    total = parts[0] * earned + parts[1] * Fraction(leaf.other)
    total += sum((own.get((id(piece), at), Fraction(0)) for piece, at in leaf.tokens), Fraction(0))
    rows[-1].earned += total - sum(row.earned for row in rows)
    back, answered = Fraction(0), False
    for row in reversed(rows):
        takes_time = (row.acts or row.answers) and not answered
        back = row.earned + (Fraction(gamma) if takes_time else 1) * back
        row.back, row.total, answered = back, total, row.answers
    return [row for row in rows if row.acts]


class Peers:
    """Values that are compared with each other."""

    def __init__(self, values: Sequence[Fraction], scale: str, less: int) -> None:
        """Count the values. less: what a sample's deviation divides by less than their number."""
        self.number, self.mean, self.divisor = len(values), Fraction(0), 1.0
        self.mean = sum(values, Fraction(0)) / len(values)
        if scale == "mean_std" and len(values) > 1:
            square = sum((value - self.mean) ** 2 for value in values) / (len(values) - less)
            self.divisor = sqrt(square) + 1e-6

    def compared(self, value: Fraction) -> float:
        return float(value - self.mean) / self.divisor


def _groups(rows: Iterable[tuple[Hashable, Fraction]]) -> dict[Hashable, list[Fraction]]:
    found: dict[Hashable, list[Fraction]] = defaultdict(list)
    for key, value in rows:
        found[key].append(value)
    return found


def gigpo(paths: Sequence[list[Row]], *, scale: str, rows: str, step_weight: float) -> None:
    """Set the advantage of each row: A_E + w A_S (Feng et al. 2025, arXiv 2505.10978)."""
    every = [row for path in paths for row in path]
    totals = every if rows == "steps" else [path[0] for path in paths]
    episodes = Peers([row.total for row in totals], scale, 1)
    alike = _groups((row.state, row.back) for row in every)
    states = {state: Peers(values, scale, 1) for state, values in alike.items()}
    for row in every:
        step = states[row.state].compared(row.back)
        row.advantage = episodes.compared(row.total) + step_weight * step


def hgpo(
    paths: Sequence[list[Row]], *, scale: str, history: int, power: float, episode_term: bool
) -> None:
    """Set the advantage of each row: Σ w_k a_k / (Σ w_k + 1e-6) over a_k that are not 0."""

    def keys(path: list[Row], at: int) -> list[Hashable]:
        deep = min(history + 1, at + 1)
        return [tuple(r.state for r in path[at - k + 1 : at + 1]) for k in range(1, deep + 1)]

    places = [(path, at) for path in paths for at in range(len(path))]
    alike = _groups((key, path[at].back) for path, at in places for key in keys(path, at))
    groups = {key: Peers(values, scale, 0) for key, values in alike.items()}
    episodes = Peers([path[at].total for path, at in places], scale, 1)
    for path, at in places:
        row = path[at]
        terms = [(1.0, row.total, episodes)] if episode_term else []
        for k, key in enumerate(keys(path, at), 1):
            if groups[key].number > 1:
                terms.append(((k + 1.0) ** power, row.back, groups[key]))
        kept = [(w, peers.compared(v)) for w, v, peers in terms if v != peers.mean]
        row.advantage = sum(w * a for w, a in kept) / (sum(w for w, _ in kept) + 1e-6)


def shared(paths: Sequence[list[Row]]) -> dict[Token, float]:
    """Return the advantage of each token: a shared step has the mean over its paths (ADR 021)."""
    values: dict[Token, list[float]] = defaultdict(list)
    for path in paths:
        for row in path:
            for token in row.tokens:
                values[token].append(row.advantage)
    return {token: sum(found) / len(found) for token, found in values.items()}
