"""Turns of paths: which of the policy's tokens are an action, and which tokens stand behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from banyan.environments.renderers import OURS, RendererSpec
from banyan.errors import InvalidInput
from banyan.plugins import Branch
from banyan.segment import IntTokens, Kind, Segment
from banyan.tree import Tree
from services.rollout.engines.port import Tokenizer

_MARK_TOKENS = 32  # last tokens of a sample, among which the end mark of an action lies


@dataclass(frozen=True, slots=True)
class Turns:
    """The actions that a path may have.

    most: their number.
    end: the mark that ends one.
    renderer: writes the turns of its answers.
    longest_path: tokens of a path with its prompt; 0 for any number.
    """

    most: int
    end: str
    renderer: RendererSpec = OURS
    longest_path: int = 0

    def fills(self, path_tokens: int) -> bool:
        """Tell whether a path of so many tokens leaves the model no room."""
        return 0 < self.longest_path <= path_tokens

    def taken(self, tree: Tree, branch: Branch) -> int:
        """Return the answers that the path to a branch has."""
        return sum(piece.kind is Kind.TOOL for piece in tree.lineage(branch.parent))


class Actions:
    """The actions in one tree, in tokens.

    Raises InvalidInput if the tokenizer cannot write turns with the renderer.
    """

    def __init__(self, turns: Turns, tokenizer: Tokenizer) -> None:
        self._turns, self._tokenizer = turns, tokenizer
        self._renderer = tokenizer.renderer(turns.renderer)

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """Return the tokens of a conversation, up to where the model's answer begins."""
        return np.array(self._renderer.render(messages), np.int32)

    def ends(self, tokens_T: IntTokens) -> bool:
        """Tell whether tokens that stopped end with a call, and not with the model's end."""
        if int(tokens_T[-1]) in self._tokenizer.eos:
            return False
        return self._turns.end in self._tokenizer.decode(tokens_T[-_MARK_TOKENS:])

    def fills(self, path_tokens: int) -> bool:
        """Tell whether a path of so many tokens leaves the model no room."""
        return self._turns.fills(path_tokens)

    def turn_left(self, tree: Tree, branch: Branch) -> bool:
        """Tell whether the path to a branch may have one more answer."""
        return self._turns.taken(tree, branch) < self._turns.most

    def bridges(self, tree: Tree, branch: Branch, tokens_T: IntTokens) -> bool:
        """Tell whether a turn can follow an action whose last tokens stand at a branch."""
        return self._bridge(tree, branch, tokens_T, "") is not None

    def answer(self, tree: Tree, action: Segment, text: str) -> IntTokens:
        """Return the tokens between an action and what the policy says next, as many of them as
        the path has room for.
        """
        place = Branch(action.parent, action.fork, action.ordinal)
        ids = self._bridge(tree, place, action.tokens_T, text)
        if ids is None:
            raise InvalidInput(
                f"{self._turns.renderer} writes no turn for an answer of {len(text)} characters,"
                " though it writes one for an empty answer; environment.renderer needs another one"
            )
        if self._turns.longest_path:
            ids = ids[: self._turns.longest_path - tree.prefix_length(action.id, len(action))]
        return np.array(ids, np.int32)

    def _bridge(
        self, tree: Tree, branch: Branch, tokens_T: IntTokens, text: str
    ) -> list[int] | None:
        before = tree.prefix_tokens(branch.parent, branch.fork)
        start = tree.context_length(branch.parent, branch.fork)
        action = [*before[start:].tolist(), *tokens_T.tolist()]
        return self._renderer.bridge(before[:start].tolist(), action, text)


def actions_of(turns: Turns | None, tokenizer: Tokenizer) -> Actions | None:
    """Return the actions in a tree; None for one without an environment."""
    return Actions(turns, tokenizer) if turns is not None else None
