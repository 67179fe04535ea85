"""latr's tree as it is seen now: the greedy phase replayed token by token, then what finishes each branch (card 7).

Tokens are counted from the prompt, for all branches alike, and only those where something happens are looked at.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan
from banyan.segment import Sampling, Segment
from banyan.signals import Wanted
from services.rollout.generate.chains import Chain, chain_at
from services.rollout.generate.lookahead import Choices, Likeness, Rule, openings


@dataclass(eq=False, slots=True)
class _Row:
    """A branch of the tree phase. `forced`: the runner-up that it begins with; empty for the first.

    chain: its greedy segments alone. choices: by place, the tokens that may open branches.
    """

    chain: Chain
    forced: tuple[int, ...] = ()
    parent: "_Row | None" = None
    choices: dict[int, Choices] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def birth(self) -> int:
        """The place of its first token."""
        return self.chain.start

    @property
    def known(self) -> int:
        """Places before this one have a token that is known."""
        return self.birth + len(self.tokens)

    def over(self, at: int) -> bool:
        """Whether it ended before this place."""
        return self.chain.ended and self.chain.stop <= at

    def window(self, start: int, length: int) -> list[int] | None:
        """Its tokens from a place on; None where the model's end is among them, or they are not all there."""
        end = start + length
        if self.known < end or (self.chain.stopped and self.chain.stop <= end):
            return None
        return self.tokens[start - self.birth : end - self.birth]


@dataclass(slots=True)
class Growth:
    """One tree. leaves: n; of_tree: how many of them the tree phase may have; last: the tokens at which it ends."""

    view: GrowthView
    leaves: int
    of_tree: int
    rule: Rule
    likeness: Likeness
    ages: tuple[int, ...]
    chunk: int
    last: int
    greedy: Sampling
    rows: list[_Row] = field(default_factory=list)
    expansions: list[Expansion] = field(default_factory=list)
    marks: list[LeafMark] = field(default_factory=list)

    def plan(self) -> Plan:
        """What the tree lacks, and its leaves so far."""
        first = 1 + self.rule.candidates  # ordinals below are the tree's
        for ordinal in range(self.leaves - self.of_tree):
            self._sample(self._at_root(first + ordinal), 0)
        if self.of_tree:
            tokens = self._tree()
            if tokens is not None:
                self._finish(tokens, first)
        return Plan(tuple(self.expansions), tuple(self.marks), done=len(self.marks) == self.leaves)

    def _at_root(self, ordinal: int) -> Branch:
        return Branch(self.view.root.id, len(self.view.root), ordinal)

    # -- the tree phase --

    def _tree(self) -> int | None:
        """Tokens of its branches when the tree phase is over; None, with what it lacks, while it is not."""
        self.rows = [self._row(self._at_root(0), 0)]
        at = -1
        while True:
            at = self._next(at)
            waiting = [row for row in self.rows if row.known <= at and not row.over(at)]
            if waiting:
                self._ask(waiting, at)
                return None
            self._open(at)
            self._prune(at)
            if at + 1 >= self.last or self._settled(at):
                return at + 1

    def _next(self, at: int) -> int:
        """The next place where something may happen: an opening, a comparison, an end, or tokens that are not there."""
        return min([self.last - 1, *(e for row in self.rows for e in self._events(row, at) if e > at)])

    def _events(self, row: _Row, at: int) -> Iterator[int]:
        yield row.chain.stop - 1 if row.chain.ended else row.known
        if len(self.rows) < self.of_tree and row.places[-1:] > [at]:
            yield row.places[bisect_right(row.places, at)]
        yield from (row.birth + age - 1 for age in self.ages)

    def _row(self, branch: Branch, start: int, token: int | None = None, parent: _Row | None = None) -> _Row:
        forced = () if token is None else (token,)
        chain = chain_at(self.view, branch, start)
        row = _Row(replace(chain, pieces=tuple(takewhile(self._is_greedy, chain.pieces))), forced, parent)
        for piece in row.chain.pieces:
            place = start + len(row.tokens)
            row.choices.update({place + t: choices for t, choices in openings(piece, self.rule).items()})
            row.tokens += piece.tokens_T.tolist()
        row.places = list(row.choices)
        row.tokens = row.tokens or list(forced)
        return row

    def _is_greedy(self, segment: Segment) -> bool:
        return replace(segment.sampling, max_new_tokens=self.greedy.max_new_tokens) == self.greedy

    def _ask(self, rows: list[_Row], at: int) -> None:
        """The next chunk of rows that lack a token. Chunks end at multiples, so that rows ask together."""
        upto = min((at // self.chunk + 1) * self.chunk, self.last)
        self.expansions += [row.chain.more(self.greedy, upto, row.forced, Wanted(top=self.rule.candidates)) for row in rows]

    def _open(self, at: int) -> None:
        """Branches at this place, all second choices before all third ones, by row, while there is room."""
        if at + 1 >= self.view.max_path_tokens:
            return  # no room for a token after the forced one
        rows = [(row, row.choices.get(at, ())) for row in self.rows]
        most = max(len(choices) for _, choices in rows)
        wanted = [(row, *choices[n]) for n in range(most) for row, choices in rows if n < len(choices)]
        for row, rank, token in wanted[: max(0, self.of_tree - len(self.rows))]:
            self.rows.append(self._row(Branch(*row.chain.place(at), 1 + rank), at, token, row))

    def _prune(self, at: int) -> None:
        gone = {id(row) for row in self.rows if self._repeats(row, at)}
        for row in list(self.rows):  # parents come before their children
            if row.parent is not None and id(row.parent) in gone:
                gone.add(id(row))
        self.rows = [row for row in self.rows if id(row) not in gone]

    def _repeats(self, row: _Row, at: int) -> bool:
        """Whether a branch that came of age here is too much like its parent since it left it."""
        age = at - row.birth + 1
        if row.parent is None or age not in self.ages:
            return False
        a, b = row.window(row.birth, age), row.parent.window(row.birth, age)
        return a is not None and b is not None and self.likeness.between(a, b)

    def _settled(self, at: int) -> bool:
        """Whether the group is full and no branch is too young, or all have ended."""
        running = [row for row in self.rows if not row.over(at + 1)]
        old = max(self.ages, default=0)
        full = len(self.rows) >= self.of_tree and all(at - row.birth + 1 >= old for row in running)
        return full or not running

    # -- and after it --

    def _finish(self, tokens: int, first: int) -> None:
        """Ordinary sampling from each branch's place, and copies for the slots that are left."""
        for row in self.rows:
            if row.over(tokens):
                self._mark(row.chain)
            elif row.chain.pieces:
                self._sample(Branch(*row.chain.place(tokens), 0), tokens)
            else:
                self._sample(row.chain.branch, row.birth, row.forced)
        if len(self.rows) < self.of_tree:
            self._copy(tokens, first)

    def _copy(self, tokens: int, first: int) -> None:
        """Copies of the first branch that runs on. Whether one that begins here does, its forced token must tell first."""
        place, start, ordinal = (self.view.root.id, len(self.view.root)), 0, first + self.leaves - self.of_tree
        for row in self.rows:
            chain = chain_at(self.view, row.chain.branch, row.birth)
            if not chain.pieces:
                return
            if not (chain.ended and chain.stop <= tokens):
                place, start, ordinal = chain.place(tokens), tokens, first
                break
        for copy in range(self.of_tree - len(self.rows)):
            self._sample(Branch(*place, ordinal + copy), start)

    def _sample(self, branch: Branch, start: int, forced: tuple[int, ...] = ()) -> None:
        """A path to its end: its leaf, or what it lacks."""
        chain = chain_at(self.view, branch, start)
        if chain.ended:
            self._mark(chain)
        else:
            self.expansions.append(chain.more(self.view.sampling, chain.limit, forced))

    def _mark(self, chain: Chain) -> None:
        self.marks.append(LeafMark(chain.leaf(), "stop" if chain.stopped else "length"))
