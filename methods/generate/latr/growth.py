"""Growth of latr's tree: the greedy phase, examined token by token, then the end of each branch.

Tokens are counted from the prompt, for all branches alike; only places with events are visited.
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
class _LookaheadBranch:
    """Branch of the tree phase.

    chain: its greedy segments alone
    forced: the runner-up that it begins with; empty for the first branch
    parent: branch that it left
    choices: by place, the tokens that may open branches
    places: places with choices
    tokens: its known tokens
    """

    chain: Chain
    forced: tuple[int, ...] = ()
    parent: "_LookaheadBranch | None" = None
    choices: dict[int, Choices] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def birth(self) -> int:
        """Place of its first token."""
        return self.chain.start

    @property
    def known(self) -> int:
        """Place before which all tokens are known."""
        return self.birth + len(self.tokens)

    def over(self, at: int) -> bool:
        """Return whether it ended before this place."""
        return self.chain.ended and self.chain.stop <= at

    def window(self, start: int, length: int) -> list[int] | None:
        """Return its tokens from a place on; None at the model's end, or if some are missing."""
        end = start + length
        if self.known < end or (self.chain.stopped and self.chain.stop <= end):
            return None
        return self.tokens[start - self.birth : end - self.birth]

    def take(self, piece: Segment, rule: ForkRule) -> None:
        """Add a greedy segment. A forced token is known before it comes."""
        start = self.chain.stop
        self.chain = self.chain.and_then(piece)
        self.choices.update({start + t: choices for t, choices in openings(piece, rule).items()})
        self.places = list(self.choices)
        self.tokens[start - self.birth :] = piece.tokens_T.tolist()


@dataclass(slots=True)
class Lookahead:
    """Lookahead phase and completion of one tree.

    leaves: n
    of_tree: leaves that the tree phase may have
    rule: rule for opening branches
    likeness: rule for deleting branches
    ages: ages at which a branch is compared, ascending
    chunk: tokens of a greedy segment
    last: tokens at which the tree phase ends
    greedy: sampling of the tree phase
    branches: branches of the tree phase
    """

    growth: Growth
    leaves: int
    of_tree: int
    rule: ForkRule
    likeness: Likeness
    ages: tuple[int, ...]
    chunk: int
    last: int
    greedy: Sampling
    branches: list[_LookaheadBranch] = field(default_factory=list)

    async def grow(self) -> None:
        first = 1 + self.rule.candidates  # lower ordinals belong to the tree phase
        for ordinal in range(self.leaves - self.of_tree):
            self._sample(Branch(*self.growth.root, first + ordinal), 0)
        if self.of_tree:
            await self._finish(await self._tree(), first)

    # -- the tree phase --

    async def _tree(self) -> int:
        """Grow the branches of the tree phase; return their tokens at its end."""
        self.branches = [self._new_branch(Branch(*self.growth.root, 0), 0)]
        at = -1
        while True:
            at = self._next(at)
            await self._tokens(at)
            self._open(at)
            self._prune(at)
            if at + 1 >= self.last or self._settled(at):
                return at + 1

    def _next(self, at: int) -> int:
        """Return the next place with a possible event: an opening, a comparison, an end, missing
        tokens."""
        return min(
            [
                self.last - 1,
                *(e for branch in self.branches for e in self._events(branch) if e > at),
                *self._openings(at),
            ]
        )

    def _events(self, branch: _LookaheadBranch) -> list[int]:
        """Return the places where a branch ends or must be sampled further, and is compared."""
        return [
            branch.chain.stop - 1 if branch.chain.ended else branch.known,
            *[branch.birth + age - 1 for age in self.ages],
        ]

    def _openings(self, at: int) -> list[int]:
        """Return the next opening of each branch, if there is capacity for it."""
        if len(self.branches) >= self.of_tree:
            return []
        return [
            branch.places[bisect_right(branch.places, at)]
            for branch in self.branches
            if branch.places and branch.places[-1] > at
        ]

    def _new_branch(
        self,
        place: Branch,
        start: int,
        forced: tuple[int, ...] = (),
        parent: _LookaheadBranch | None = None,
    ) -> _LookaheadBranch:
        chain = Chain(place, start, self.growth.view.max_path_tokens)
        return _LookaheadBranch(chain, forced, parent, tokens=list(forced))

    async def _tokens(self, at: int) -> None:
        """Wait until all branches have the token at this place.

        Chunks end at multiples, so that branches request them together.
        """
        while lacking := [
            branch for branch in self.branches if branch.known <= at and not branch.over(at)
        ]:
            end = min((at // self.chunk + 1) * self.chunk, self.last)
            signals = Wanted(top=self.rule.candidates)
            asked = [
                self.growth.ask(branch.chain.more(self.greedy, end, branch.forced, signals))
                for branch in lacking
            ]
            for branch, piece in zip(lacking, asked, strict=True):
                branch.take(await piece, self.rule)

    def _open(self, at: int) -> None:
        """Open branches at this place within capacity: all second choices before all third ones."""
        if at + 1 >= self.growth.view.max_path_tokens or len(self.branches) >= self.of_tree:
            return  # no budget for a token after the forced one, or for a branch
        openings = [(branch, branch.choices.get(at, ())) for branch in self.branches]
        most = max(len(choices) for _, choices in openings)
        wanted = [
            (branch, *choices[n])
            for n in range(most)
            for branch, choices in openings
            if n < len(choices)
        ]
        for branch, rank, token in wanted[: self.of_tree - len(self.branches)]:
            self.branches.append(
                self._new_branch(Branch(*branch.chain.place(at), 1 + rank), at, (token,), branch)
            )

    def _prune(self, at: int) -> None:
        gone = {id(branch) for branch in self.branches if self._repeats(branch, at)}
        if not gone:
            return
        for branch in list(self.branches):  # parents come before their children
            if branch.parent is not None and id(branch.parent) in gone:
                gone.add(id(branch))
        self.branches = [branch for branch in self.branches if id(branch) not in gone]

    def _repeats(self, branch: _LookaheadBranch, at: int) -> bool:
        """Return whether a branch reaches a comparison here and is too much like its parent."""
        age = at - branch.birth + 1
        if branch.parent is None or age not in self.ages:
            return False
        a, b = branch.window(branch.birth, age), branch.parent.window(branch.birth, age)
        return a is not None and b is not None and self.likeness.between(a, b)

    def _settled(self, at: int) -> bool:
        """Return whether the group is full and no branch is too young, or all have ended."""
        running = [branch for branch in self.branches if not branch.over(at + 1)]
        old = max(self.ages, default=0)
        full = len(self.branches) >= self.of_tree and all(
            at - branch.birth + 1 >= old for branch in running
        )
        return full or not running

    # -- completion --

    async def _finish(self, tokens: int, first: int) -> None:
        """Sample each branch to its end, and copies for the slots that are left."""
        for branch in self.branches:
            if branch.over(tokens):
                self._mark(branch.chain)
            elif branch.chain.pieces:
                self._sample(Branch(*branch.chain.place(tokens), 0), tokens)
            else:
                self._sample(branch.chain.branch, branch.birth, branch.forced)
        if len(self.branches) < self.of_tree:
            await self._copy(tokens, first)

    async def _copy(self, tokens: int, first: int) -> None:
        """Copy the first branch that runs on.

        For a branch that begins here, its forced token shows first whether it does.
        """
        place = self.growth.root
        start = 0
        ordinal = first + self.leaves - self.of_tree
        for branch in self.branches:
            if not branch.chain.pieces:
                branch.take(
                    await self.growth.ask(self._rest(branch.chain, branch.forced)), self.rule
                )
            if not branch.over(tokens):
                place = branch.chain.place(tokens)
                start = tokens
                ordinal = first
                break
        for copy in range(self.of_tree - len(self.branches)):
            self._sample(Branch(*place, ordinal + copy), start)

    def _sample(self, branch: Branch, start: int, forced: tuple[int, ...] = ()) -> None:
        self.growth.start(
            self._path(Chain(branch, start, self.growth.view.max_path_tokens), forced)
        )

    async def _path(self, chain: Chain, forced: tuple[int, ...]) -> None:
        """Sample a path to its end, which is a leaf."""
        while not chain.ended:
            chain = chain.and_then(await self.growth.ask(self._rest(chain, forced)))
        self._mark(chain)

    def _rest(self, chain: Chain, forced: tuple[int, ...]) -> Expansion:
        return chain.more(self.growth.view.sampling, chain.limit, forced)

    def _mark(self, chain: Chain) -> None:
        self.growth.mark(chain.leaf(), "stop" if chain.stopped else "length")
