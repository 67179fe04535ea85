"""latr's tree: the greedy phase, looked at token by token, then what finishes each branch (card 7).

Tokens are counted from the prompt, for all branches alike, and only those where something happens are looked at.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from banyan.plugins import Branch, Expansion
from banyan.segment import Sampling, Segment
from banyan.signals import Wanted
from methods.generate.chains import Chain
from methods.generate.coroutine_policy import Growth
from methods.generate.latr.lookahead import Choices, ForkRule, Likeness, openings


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

    def take(self, piece: Segment, rule: ForkRule) -> None:
        """Goes on by a greedy segment. A forced token is known before it comes."""
        start = self.chain.stop
        self.chain = self.chain.and_then(piece)
        self.choices.update({start + t: choices for t, choices in openings(piece, rule).items()})
        self.places = list(self.choices)
        self.tokens[start - self.birth :] = piece.tokens_T.tolist()


@dataclass(slots=True)
class Lookahead:
    """One tree. leaves: n; of_tree: how many of them the tree phase may have; last: the tokens at which it ends."""

    growth: Growth
    leaves: int
    of_tree: int
    rule: ForkRule
    likeness: Likeness
    ages: tuple[int, ...]
    chunk: int
    last: int
    greedy: Sampling
    rows: list[_Row] = field(default_factory=list)

    async def grow(self) -> None:
        first = 1 + self.rule.candidates  # ordinals below are the tree's
        for ordinal in range(self.leaves - self.of_tree):
            self._sample(Branch(*self.growth.root, first + ordinal), 0)
        if self.of_tree:
            await self._finish(await self._tree(), first)

    # -- the tree phase --

    async def _tree(self) -> int:
        """Grows its branches. Returns their tokens when the tree phase is over."""
        self.rows = [self._row(Branch(*self.growth.root, 0), 0)]
        at = -1
        while True:
            at = self._next(at)
            await self._tokens(at)
            self._open(at)
            self._prune(at)
            if at + 1 >= self.last or self._settled(at):
                return at + 1

    def _next(self, at: int) -> int:
        """The next place where something may happen: an opening, a comparison, an end, or tokens that are not there."""
        return min(
            [
                self.last - 1,
                *(e for row in self.rows for e in self._events(row) if e > at),
                *self._openings(at),
            ]
        )

    def _events(self, row: _Row) -> list[int]:
        """Places where a row ends or must be sampled further, and where it is compared."""
        return [
            row.chain.stop - 1 if row.chain.ended else row.known,
            *[row.birth + age - 1 for age in self.ages],
        ]

    def _openings(self, at: int) -> list[int]:
        """The next opening of each row, where there is room for it."""
        if len(self.rows) >= self.of_tree:
            return []
        return [
            r.places[bisect_right(r.places, at)]
            for r in self.rows
            if r.places and r.places[-1] > at
        ]

    def _row(
        self, branch: Branch, start: int, forced: tuple[int, ...] = (), parent: _Row | None = None
    ) -> _Row:
        chain = Chain(branch, start, self.growth.view.max_path_tokens)
        return _Row(chain, forced, parent, tokens=list(forced))

    async def _tokens(self, at: int) -> None:
        """Waits until all rows have the token at this place. Chunks end at multiples, so that rows ask together."""
        while lacking := [row for row in self.rows if row.known <= at and not row.over(at)]:
            upto, signals = (
                min((at // self.chunk + 1) * self.chunk, self.last),
                Wanted(top=self.rule.candidates),
            )
            asked = [
                self.growth.ask(row.chain.more(self.greedy, upto, row.forced, signals))
                for row in lacking
            ]
            for row, piece in zip(lacking, asked, strict=True):
                row.take(await piece, self.rule)

    def _open(self, at: int) -> None:
        """Branches at this place, all second choices before all third ones, by row, while there is room."""
        if at + 1 >= self.growth.view.max_path_tokens or len(self.rows) >= self.of_tree:
            return  # no room for a token after the forced one, or for a branch
        rows = [(row, row.choices.get(at, ())) for row in self.rows]
        most = max(len(choices) for _, choices in rows)
        wanted = [
            (row, *choices[n]) for n in range(most) for row, choices in rows if n < len(choices)
        ]
        for row, rank, token in wanted[: self.of_tree - len(self.rows)]:
            self.rows.append(self._row(Branch(*row.chain.place(at), 1 + rank), at, (token,), row))

    def _prune(self, at: int) -> None:
        gone = {id(row) for row in self.rows if self._repeats(row, at)}
        if not gone:
            return
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

    async def _finish(self, tokens: int, first: int) -> None:
        """Ordinary sampling from each branch's place, and copies for the slots that are left."""
        for row in self.rows:
            if row.over(tokens):
                self._mark(row.chain)
            elif row.chain.pieces:
                self._sample(Branch(*row.chain.place(tokens), 0), tokens)
            else:
                self._sample(row.chain.branch, row.birth, row.forced)
        if len(self.rows) < self.of_tree:
            await self._copy(tokens, first)

    async def _copy(self, tokens: int, first: int) -> None:
        """Copies of the first branch that runs on. Whether one that begins here does, its forced token must tell first."""
        place, start, ordinal = self.growth.root, 0, first + self.leaves - self.of_tree
        for row in self.rows:
            if not row.chain.pieces:
                row.take(await self.growth.ask(self._rest(row.chain, row.forced)), self.rule)
            if not row.over(tokens):
                place, start, ordinal = row.chain.place(tokens), tokens, first
                break
        for copy in range(self.of_tree - len(self.rows)):
            self._sample(Branch(*place, ordinal + copy), start)

    def _sample(self, branch: Branch, start: int, forced: tuple[int, ...] = ()) -> None:
        self.growth.start(
            self._path(Chain(branch, start, self.growth.view.max_path_tokens), forced)
        )

    async def _path(self, chain: Chain, forced: tuple[int, ...]) -> None:
        """A path to its end, which is a leaf."""
        while not chain.ended:
            chain = chain.and_then(await self.growth.ask(self._rest(chain, forced)))
        self._mark(chain)

    def _rest(self, chain: Chain, forced: tuple[int, ...]) -> Expansion:
        return chain.more(self.growth.view.sampling, chain.limit, forced)

    def _mark(self, chain: Chain) -> None:
        self.growth.mark(chain.leaf(), "stop" if chain.stopped else "length")
