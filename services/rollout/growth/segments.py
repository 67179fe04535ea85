"""Segments of a tree, made from an engine's samples: forced tokens first, then policy tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from banyan.environments.receipts import Receipt
from banyan.plugins import Branch, Expansion, LeafMark
from banyan.reasons import Reason
from banyan.segment import Finish, Floats, Kind, Origin, Segment
from banyan.tree import Tree
from services.rollout.engines.port import Sampled, Tokenizer, no_floats
from services.rollout.engines.turns import Actions


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """An environment's answer: its proof, and the text that the path goes on with."""

    receipt: Receipt
    text: str


@dataclass(frozen=True, slots=True)
class SegmentBuilder:
    """Builder of the segments of one tree.

    tree: the tree, which the builder only reads.
    tokenizer: tokenizer of the engine.
    producer: name of the node.
    max_path_tokens: tokens that a path may hold after the prompt.
    actions: actions in the tree, in tokens; None without an environment.
    """

    tree: Tree
    tokenizer: Tokenizer
    producer: str
    max_path_tokens: int
    actions: Actions | None = None

    def root(self, messages: Sequence[Mapping[str, str]]) -> Segment:
        """Return the prompt segment of a conversation."""
        acts = self.actions
        tokens = acts.prompt(messages) if acts else self.tokenizer.encode_chat(messages)
        text = "\n".join(str(message.get("content", "")) for message in messages)
        return Segment(
            tree_id=self.tree.tree_id,
            parent=b"",
            fork=0,
            ordinal=0,
            kind=Kind.PROMPT,
            tokens_T=tokens,
            text=text,
            producer=self.producer,
        )

    def of_sample(self, expansion: Expansion, sample: Sampled, pruned: bool) -> list[Segment]:
        """Return the segments of a branch that ended, parents first.

        They are a FORCED segment, if the expansion forces tokens, and a POLICY segment; none if the
        branch was stopped before all forced tokens were in.
        """
        forced = len(expansion.forced)
        if len(sample.tokens_T) < max(1, forced):
            return []
        at_end = self.ends_path(expansion.forced)
        segments: list[Segment] = []
        branch = expansion.branch
        for start, stop in _spans(forced, forced if at_end else len(sample.tokens_T)):
            span = slice(start, stop)
            segment = self._segment(expansion, sample, pruned=pruned, branch=branch, span=span)
            segments.append(segment)
            branch = Branch(segment.id, forced, 0)
        return segments

    def ends_path(self, forced: tuple[int, ...]) -> bool:
        """Tell whether forced tokens end a path: the last of them is an end token of the model."""
        return bool(forced) and forced[-1] in self.tokenizer.eos

    def _segment(
        self, expansion: Expansion, sample: Sampled, pruned: bool, branch: Branch, span: slice
    ) -> Segment:
        """Return the segment at `branch` of the tokens in `span`."""
        is_forced = span.start < len(expansion.forced)
        cached = sample.cached_tokens
        if (
            branch is not expansion.branch
        ):  # it continues the forced segment, which was just decoded
            start = expansion.branch
            cached = self.tree.prefix_length(start.parent, start.fork) + len(expansion.forced)
        return Segment(
            tree_id=self.tree.tree_id,
            parent=branch.parent,
            fork=branch.fork,
            ordinal=branch.ordinal,
            kind=Kind.FORCED if is_forced else Kind.POLICY,
            origin=expansion.origin if is_forced else Origin.NONE,
            tokens_T=sample.tokens_T[span],
            logprobs_T=sample.logprobs_T[span],
            sampled_logprobs_T=_sampled_logprobs(expansion, sample, span, is_forced),
            policy=sample.policy.digest,
            sampling=expansion.sampling,
            finish=self._finish(expansion, sample, pruned, is_forced),
            policy_epoch=sample.policy.epoch,
            policy_step=sample.policy.step,
            producer=self.producer,
            text=self.tokenizer.decode(sample.tokens_T[span]),
            cached_tokens=cached,
            entropies_T=sample.entropies_T[span],
            signals=sample.signals[span],
        )

    def _finish(
        self, expansion: Expansion, sample: Sampled, pruned: bool, is_forced: bool
    ) -> Finish:
        """Return the finish of a segment.

        The engine knows the limit of the segment; the limit of the path, and whether an aborted
        branch was pruned, are known only here.
        """
        if is_forced:
            return Finish.STOP if self.ends_path(expansion.forced) else Finish.BOUNDARY
        if sample.finish is Finish.ABORTED and pruned:
            return Finish.PRUNED
        branch = expansion.branch
        is_full = self._fills(branch.parent, branch.fork, len(sample.tokens_T))
        acts = self.actions
        if sample.finish is Finish.STOP and acts and acts.ends(sample.tokens_T):
            goes_on = not is_full and acts.turn_left(self.tree, branch)
            goes_on = goes_on and acts.bridges(self.tree, branch, sample.tokens_T)
            return Finish.TOOL_CALL if goes_on else Finish.LENGTH
        return Finish.LENGTH if sample.finish is Finish.BOUNDARY and is_full else sample.finish

    def _fills(self, segment: bytes, end: int, new: int = 0) -> bool:
        """Tell whether nothing can be sampled behind `new` tokens at a place."""
        if self.tree.answer_length(segment, end) + new >= self.max_path_tokens:
            return True
        acts = self.actions
        return acts is not None and acts.fills(self.tree.prefix_length(segment, end) + new)

    def reasoned(self, mark: LeafMark) -> LeafMark:
        """Return a mark with the reason RENDERER, if no turn could follow the action there."""
        leaf, acts = mark.leaf, self.actions
        segment = self.tree.segments[leaf.segment]
        if acts is None or segment.finish is not Finish.LENGTH or leaf.end != len(segment):
            return mark
        branch = Branch(segment.parent, segment.fork, segment.ordinal)
        is_full = self._fills(leaf.segment, leaf.end)
        if segment.kind is not Kind.POLICY or is_full or not acts.ends(segment.tokens_T):
            return mark
        if not acts.turn_left(self.tree, branch) or acts.bridges(
            self.tree, branch, segment.tokens_T
        ):
            return mark
        return LeafMark(leaf, Reason.RENDERER)

    def answer(self, action: Segment, answer: ToolAnswer) -> Segment:
        """Return the TOOL segment of an environment's answer to an action."""
        assert self.actions is not None
        tokens_T = self.actions.answer(self.tree, action, answer.text)
        is_full = self._fills(action.id, len(action)) or self.actions.fills(
            self.tree.prefix_length(action.id, len(action)) + len(tokens_T)
        )
        goes_on = Finish.LENGTH if is_full else Finish.BOUNDARY
        return Segment(
            tree_id=self.tree.tree_id,
            parent=action.id,
            fork=len(action),
            ordinal=0,
            kind=Kind.TOOL,
            tokens_T=tokens_T,
            finish=Finish.STOP if answer.receipt.observation.done else goes_on,
            receipt=answer.receipt,
            text=answer.text,
            producer=self.producer,
        )


def _spans(forced: int, tokens: int) -> list[tuple[int, int]]:
    """Return where the segments of `tokens` tokens begin and end; the first `forced` are forced."""
    return [(start, stop) for start, stop in ((0, forced), (forced, tokens)) if stop > start]


def _sampled_logprobs(
    expansion: Expansion, sample: Sampled, span: slice, is_forced: bool
) -> Floats:
    """Return log-probs under the distribution drawn from: 0 for forced tokens, which were certain;
    for others only where that distribution was truncated."""
    if is_forced:
        return np.zeros(span.stop - span.start, np.float32)
    return sample.sampled_logprobs_T[span] if expansion.sampling.truncated else no_floats()
