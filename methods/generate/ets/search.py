"""Search of ets, depth by depth: steps that end paths, steps that go on, and their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from banyan.plugins import Branch, Expansion
from banyan.segment import Finish, Sampling
from banyan.signals import NO_SIGNALS, Wanted
from methods.generate.coroutine_policy import Growth
from methods.generate.cuts import Run, upto
from methods.generate.ets.clusters import clusters
from methods.generate.ets.meaning import embeddings
from methods.generate.ets.rebase import counts, shares
from methods.generate.ets.select import Choice, kv_tokens, select


class SearchSettings(Protocol):
    """Settings of a search, as in `methods.generate.ets.policy.Ets`, and its scorer."""

    @property
    def step(self) -> int: ...
    @property
    def delimiter(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def lambda_b(self) -> float: ...
    @property
    def lambda_d(self) -> float: ...
    @property
    def temperature(self) -> float: ...
    @property
    def cut(self) -> float: ...
    @property
    def scorer(self) -> str: ...

    def score(self, prompt: str, text: str) -> float:
        """Score the text of a path behind a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """Settings of the selection, under the same names as in the policy."""

    lambda_b: float
    lambda_d: float
    temperature: float
    cut: float


Decision = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def decided(
    rule: SelectionRule,
    scores: tuple[float, ...],
    above: tuple[tuple[bytes, ...], ...],
    texts: tuple[str, ...],
    width: int,
) -> Decision:
    """Return the kept candidates, the children of each of these, and the clusters of all.

    Nothing is clustered with one candidate or one text, or without a worth of clusters (λ_d = 0).
    """
    alike = not rule.lambda_d or len(set(texts)) < 2
    named = () if alike else tuple(clusters(embeddings(texts), rule.cut))
    choice = Choice(
        worth=shares(scores, width, rule.temperature),
        ancestors=above,
        clusters=named,
        cost=rule.lambda_b,
        bonus=rule.lambda_d,
    )
    kept = select(choice)
    children = counts([scores[i] for i in kept], width, rule.temperature)
    return tuple(kept), tuple(children), named


@lru_cache(16)
def ending_at(sampling: Sampling, delimiter: str) -> Sampling:
    """Return the sampling with a delimiter as a further stop."""
    return replace(sampling, stop=(*sampling.stop, delimiter))


@dataclass(frozen=True, slots=True)
class Node:
    """End of a step.

    run: segments of the step
    above: ends of the steps before it, the prompt first
    tokens: tokens of the path, without the prompt
    """

    run: Run
    above: tuple["Node", ...]
    tokens: int

    @property
    def id(self) -> bytes:
        """Name of the node."""
        return self.run.last.id

    @property
    def text(self) -> str:
        """Text of the path."""
        return "".join(node.run.text for node in (*self.above[1:], self))


@dataclass(frozen=True, slots=True)
class Depth:
    """Result of one depth of a search: its candidates, those kept, and their clusters."""

    candidates: tuple[Node, ...]
    kept: tuple[int, ...]
    clusters: tuple[int, ...]

    @property
    def kv_tokens(self) -> int:
        """Tokens of the nodes on the candidates' paths."""
        return kv_tokens(
            [[(node.id, len(node.run)) for node in (*c.above, c)] for c in self.candidates]
        )


@dataclass(slots=True)
class Search:
    """Search of one tree."""

    policy: SearchSettings
    growth: Growth
    width: int
    depths: list[Depth] = field(default_factory=list)

    async def grow(self) -> None:
        """Search depth by depth: wait for all steps of one, then decide among them."""
        left = self.width
        wave = self._below(Node(Run((self.growth.view.root,)), (), 0), self.width)
        for depth in range(1, self.policy.depth + 1):
            steps = [self.growth.start(self._step(branch, above, depth)) for branch, above in wave]
            candidates = [node for node in [await step for step in steps] if node is not None]
            left -= len(wave) - len(candidates)
            if not candidates or left <= 0:
                return
            wave = self._spread(candidates, left)

    def _below(self, node: Node, count: int) -> list[tuple[Branch, Node]]:
        end = node.run.last
        return [(Branch(end.id, len(end), i), node) for i in range(count)]

    async def _step(self, branch: Branch, above: Node, depth: int) -> Node | None:
        """Sample a step below a node; return None if it ends its path."""
        run = await self.growth.run(self._asked(branch, above))
        node = Node(run, (*above.above, above), above.tokens + len(run))
        reason = self._ending(node) or ("depth" if depth == self.policy.depth else "")
        if not reason:
            return node
        self.growth.mark(run.leaf, reason)
        return None

    def _asked(self, branch: Branch, above: Node) -> Expansion:
        wanted = NO_SIGNALS if self.policy.scorer else Wanted(head=True)
        sampling = ending_at(self.growth.view.sampling, self.policy.delimiter)
        return Expansion(
            branch, upto(sampling, min(self.policy.step, self._most - above.tokens)), (), wanted
        )

    @property
    def _most(self) -> int:
        return min(self.growth.view.max_path_tokens, self.policy.most)

    def _ending(self, node: Node) -> str:
        """Return the reason why a path ends with this step; empty if it goes on.

        A stop at the delimiter ends a step, not the path.
        """
        if node.run.last.finish is Finish.STOP:
            text = node.run.text
            if self.policy.delimiter not in text or any(
                stop in text for stop in self.growth.view.sampling.stop
            ):
                return "stop"
        return "length" if node.tokens >= self._most else ""

    # -- selection --

    def _spread(self, candidates: Sequence[Node], left: int) -> list[tuple[Branch, Node]]:
        """Return the next steps: children of the kept candidates, as many as the width that is
        left."""
        above = tuple(tuple(node.id for node in c.above) for c in candidates)
        texts = tuple(node.run.text for node in candidates)
        policy, scores = self.policy, self._scores(candidates)
        rule = SelectionRule(policy.lambda_b, policy.lambda_d, policy.temperature, policy.cut)
        kept, children, named = decided(rule, scores=scores, above=above, texts=texts, width=left)
        self.depths.append(Depth(tuple(candidates), kept, named))
        return [
            branch
            for i, count in zip(kept, children, strict=True)
            for branch in self._below(candidates[i], count)
        ]

    def _scores(self, candidates: Sequence[Node]) -> tuple[float, ...]:
        """Return the score of each candidate's last step; all equal while the head is cold."""
        if self.policy.scorer:
            return tuple(
                self.policy.score(self.growth.view.root.text, node.text) for node in candidates
            )
        scores = [node.run.last.signals.head_T for node in candidates]
        warm = all(len(head_T) for head_T in scores)
        return tuple(float(head_T[-1]) if warm else 0.0 for head_T in scores)
