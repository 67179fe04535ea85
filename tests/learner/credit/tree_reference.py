"""PORTool and ROSE over plain trees, where a step's value is that of the paths through it.

PORTool (arXiv 2510.26020): R(s) is the mean of γ^(T − t) R of the paths through a step, compared
with the steps beside it, plus GRPO's comparison of paths. ROSE: the gain of V over the branch point
before, steps being what lies between two branch points. A shared step has the mean over its paths.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tests.learner.credit.plain_groups import End
from tests.learner.credit.step_reference import Peers, Row, Token

Paths = Mapping[End, list[Row]]
GAMMA = Fraction(0.95)


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def portool(paths: Paths) -> dict[Token, float]:
    """Return the advantage of each token of the paths, cut by turns."""
    rewards = Peers([rows[0].total for rows in paths.values()], "mean_std", 1)
    through: dict[Token, list[tuple[Fraction, float]]] = defaultdict(list)
    above: dict[Token, Token | None] = {}
    for rows in paths.values():
        before = None
        for left, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
            step = row.tokens[0]
            through[step].append((GAMMA**left * row.total, rewards.compared(row.total)))
            above[step], before = before, step
    value = {step: _mean([back for back, _ in found]) for step, found in through.items()}
    beside: dict[Token | None, list[Fraction]] = defaultdict(list)
    for step, parent in above.items():
        beside[parent].append(value[step])
    peers = {parent: Peers(values, "mean_std", 1) for parent, values in beside.items()}
    credit = {
        step: peers[above[step]].compared(value[step]) + sum(a for _, a in found) / len(found)
        for step, found in through.items()
    }
    return {t: credit[row.tokens[0]] for rows in paths.values() for row in rows for t in row.tokens}


def rose(paths: Paths) -> dict[Token, float]:
    """Return the advantage of each token of the paths, cut at branch points."""
    through: dict[Token, list[Fraction]] = defaultdict(list)
    for rows in paths.values():
        for row in rows:
            through[row.tokens[0]].append(row.total)
    credit: dict[Token, float] = {}
    for rows in paths.values():
        before = _mean([other[0].total for other in paths.values()])
        for row in rows:
            value = _mean(through[row.tokens[0]])
            credit |= dict.fromkeys(row.tokens, float(value - before))
            before = value
    return credit
