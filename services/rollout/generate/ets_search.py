"""The search of ets as a plan replays it: depth by depth, which steps end paths, which go on, and how often."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan
from banyan.segment import Finish
from banyan.signals import NO_SIGNALS, Wanted
from banyan.tree import Leaf
from services.rollout.generate.cuts import Run, continuations, run_at
from services.rollout.generate.ets_clusters import clusters
from services.rollout.generate.ets_meaning import embeddings
from services.rollout.generate.ets_rebase import counts, shares
from services.rollout.generate.ets_select import Choice, kv_tokens, select

if TYPE_CHECKING:
    from services.rollout.generate.ets import Ets


@dataclass(frozen=True, slots=True)
class Rule:
    """What decides who goes on: the settings of the same names."""

    lambda_b: float
    lambda_d: float
    temperature: float
    cut: float


Decision = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=4096)  # a plan replays its tree, and the choice among many is dear
def decided(
    rule: Rule, scores: tuple[float, ...], above: tuple[tuple[bytes, ...], ...], texts: tuple[str, ...], width: int
) -> Decision:
    """Who of the candidates is kept, the children of each of these, and the clusters of all, if there was a choice.

    Nothing is clustered where there is one candidate or one text, or nothing to gain (λ_d = 0).
    """
    alike = not rule.lambda_d or len(set(texts)) < 2
    named = () if alike else tuple(clusters(embeddings(texts), rule.cut))
    kept = select(Choice(shares(scores, width, rule.temperature), above, named, rule.lambda_b, rule.lambda_d))
    return tuple(kept), tuple(counts([scores[i] for i in kept], width, rule.temperature)), named


@dataclass(frozen=True, slots=True)
class Node:
    """The end of a step. above: the ends of the steps before it, the prompt first."""

    run: Run
    above: tuple["Node", ...]
    tokens: int  # of the path, without the prompt

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
    """What one depth of a search came to: its candidates, their clusters, and the tokens of the nodes on their paths."""

    candidates: tuple[Node, ...]
    kept: tuple[int, ...]
    clusters: tuple[int, ...]
    kv_tokens: int


@dataclass(slots=True)
class Search:
    """The search of one tree, replayed from what is recorded."""

    policy: "Ets"
    view: GrowthView
    width: int
    marks: list[LeafMark] = field(default_factory=list)
    depths: list[Depth] = field(default_factory=list)

    def plan(self) -> Plan:
        """What to sample next, and all leaves so far."""
        root = Node(Run((self.view.root,)), (), 0)
        wave = self._below(root, self.width)
        for depth in range(1, self.policy.depth + 1):
            runs = [(run_at(self.view, branch), above) for branch, above in wave]
            there = [self._node(run, above) for run, above in runs if run is not None]
            if len(there) < len(wave):
                self._mark(there, last=depth == self.policy.depth)
                return Plan(self._asked(wave), tuple(self.marks))
            candidates = self._mark(there, last=depth == self.policy.depth)
            left = self.width - len(self.marks)
            if not candidates or left <= 0:
                break
            wave = self._spread(candidates, left)
        return Plan(leaves=tuple(self.marks), done=True)

    def _below(self, node: Node, count: int) -> list[tuple[Branch, Node]]:
        end = node.run.last
        return [(Branch(end.id, len(end), i), node) for i in range(count)]

    def _node(self, run: Run, above: Node) -> Node:
        return Node(run, (*above.above, above), above.tokens + len(run))

    def _asked(self, wave: Sequence[tuple[Branch, Node]]) -> tuple[Expansion, ...]:
        wanted = NO_SIGNALS if self.policy.scorer else Wanted(head=True)
        sampling = replace(self.view.sampling, stop=(*self.view.sampling.stop, self.policy.delimiter))
        most = min(self.view.max_path_tokens, self.policy.most)
        asked = [
            Expansion(branch, replace(sampling, max_new_tokens=min(self.policy.step, most - above.tokens)), signals=wanted)
            for branch, above in wave
        ]
        return (*asked, *(replace(rest, signals=wanted) for rest in continuations(self.view)))

    # -- what ended --

    def _mark(self, there: Sequence[Node], last: bool) -> list[Node]:
        """Marks the leaves among nodes; the others."""
        rest = []
        for node in there:
            reason = self._ending(node) or ("depth" if last else "")
            if reason:
                self.marks.append(LeafMark(Leaf(node.id, len(node.run.last)), reason))
            else:
                rest.append(node)
        return rest

    def _ending(self, node: Node) -> str:
        """Why a path ends with this step; empty if it goes on. Who says the delimiter has ended a step, not the path."""
        if node.run.last.finish is Finish.STOP:
            text = node.run.text
            if self.policy.delimiter not in text or any(stop in text for stop in self.view.sampling.stop):
                return "stop"
        return "length" if node.tokens >= min(self.view.max_path_tokens, self.policy.most) else ""

    # -- who goes on --

    def _spread(self, candidates: Sequence[Node], left: int) -> list[tuple[Branch, Node]]:
        """The next steps: children of the candidates that are kept, as many as the width that is left."""
        above = tuple(tuple(node.id for node in c.above) for c in candidates)
        texts = tuple(node.run.text for node in candidates)
        policy, scores = self.policy, self._scores(candidates)
        rule = Rule(policy.lambda_b, policy.lambda_d, policy.temperature, policy.cut)
        kept, children, named = decided(rule, scores, above, texts, left)
        self._note(candidates, kept, named)
        return [b for i, count in zip(kept, children, strict=True) for b in self._below(candidates[i], count)]

    def _scores(self, candidates: Sequence[Node]) -> tuple[float, ...]:
        """The score of each one's last step; all equal while the head is cold."""
        if self.policy.scorer:
            return tuple(self.policy.score(node.text) for node in candidates)
        said = [node.run.last.signals.head_T for node in candidates]
        heard = all(len(head_T) for head_T in said)
        return tuple(float(head_T[-1]) if heard else 0.0 for head_T in said)

    def _note(self, candidates: Sequence[Node], kept: Sequence[int], named: Sequence[int]) -> None:
        paths = [[(node.id, len(node.run)) for node in (*c.above, c)] for c in candidates]
        self.depths.append(Depth(tuple(candidates), tuple(kept), tuple(named), kv_tokens(paths)))
