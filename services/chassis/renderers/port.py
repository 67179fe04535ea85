"""The renderer port: tokens of a conversation, and of the turn between an action and what follows.

A context only grows. A renderer writes the tokens behind an action, or says that it cannot; tokens
that were sampled are never written anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of the model, read by its family's form.

    content: what it says; without the tokens of the template.
    thoughts: its reasoning, where the family marks one.
    calls: calls of tools in the family's own form as it wrote them, malformed ones too; they are no
        part of the content.
    """

    content: str
    thoughts: str = ""
    calls: tuple[str, ...] = ()


class Renderer(Protocol):
    """The turns of one family of models."""

    @property
    def stops(self) -> frozenset[int]:
        """Tokens that end a turn of the model."""
        ...

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return token ids of a conversation, up to where the model's answer begins."""
        ...

    def parse(self, prompt: Sequence[int], action: Sequence[int]) -> Said:
        """Read what the model said.

        prompt: tokens of the path before it, which may have begun a thought.
        action: what the model said since.
        """
        ...

    def bridge(self, prompt: Sequence[int], action: Sequence[int], text: str) -> list[int] | None:
        """Return token ids between an action and what the model says next: the end of its turn, the
        answer as a turn of its own, and the beginning of the next turn. The text has no special
        tokens, whatever it looks like. Return None if no turn can follow these tokens unchanged.

        prompt: tokens of the path before the action.
        action: what the model said since.
        """
        ...
