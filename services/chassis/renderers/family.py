"""Turns of the families that the package `renderers` knows.

It is imported when the first tree needs it, as a client of a web service comes with it.
"""

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from banyan.environments.renderers import RendererSpec
from banyan.errors import InvalidInput
from banyan.reasons import Reason
from banyan.runtime.distribution import install
from services.chassis.renderers.port import Said
from services.chassis.renderers.spelling import Spelling

_PACKAGE = "renderers"
_ROLES = ("system", "user", "assistant", "tool")


def installed() -> str:
    """Return the version of the package here; empty if it is not installed."""
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return ""


class Family:
    """Answers as turns of a tool.

    spec: a renderer of the package, with its settings.
    tokenizer: of transformers.

    Raises InvalidInput if the tokenizer or the settings are none of this family, and with the
    reason NO_PLUGIN if the package is not here.
    """

    def __init__(self, spec: RendererSpec, tokenizer: Any, spelling: Spelling) -> None:
        self._spec, self._spelling = spec, spelling
        try:
            package = importlib.import_module(_PACKAGE)
        except ImportError as error:
            raise InvalidInput(
                f"{spec} cannot be imported here ({error}); {install('renderers')}",
                reason=Reason.NO_PLUGIN,
            ) from None
        try:
            config = type(package.config_from_name(spec.name))(**spec.settings)
            self._inner = package.create_renderer(_Tokens(tokenizer, spelling), config)
        except (AssertionError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{spec} does not fit the tokenizer of {tokenizer.name_or_path}: {error}; is the"
                " model of this family?"
            ) from None

    @property
    def stops(self) -> frozenset[int]:
        """Tokens that end a turn of the model."""
        return frozenset(self._inner.get_stop_token_ids())

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return token ids of a conversation, up to where the model's answer begins.

        Raise InvalidInput for a message of another role than these, which the package leaves out.
        """
        for message in messages:
            if message["role"] not in _ROLES:
                raise InvalidInput(
                    f"a prompt has a message of role {message['role']!r}; {self._spec} knows"
                    f" {', '.join(_ROLES)}"
                )
        own = self._spelling.own
        turns = [{**message, "content": own(message["content"])} for message in messages]
        ids: list[int] = self._inner.render_ids(turns, add_generation_prompt=True)
        return ids

    def parse(self, prompt: Sequence[int], action: Sequence[int]) -> Said:
        """Read what the model said."""
        read = self._inner.parse_response(list(action), prompt_ids=list(prompt))
        calls = tuple(str(call.raw) for call in read.tool_calls)
        return Said(str(read.content or ""), str(read.reasoning_content or ""), calls)

    def bridge(self, prompt: Sequence[int], action: Sequence[int], text: str) -> list[int] | None:
        """Return token ids between an action and what the model says next; None if the package
        would write the path anew, or leave some of it out.
        """
        before = [*prompt, *action]
        answer = {"role": "tool", "content": self._spelling.foreign(text)}
        rendered = self._inner.bridge_to_next_turn(list(prompt), list(action), [answer])
        if rendered is None or rendered.token_ids[: len(before)] != before:
            return None
        ids: list[int] = rendered.token_ids[len(before) :]
        return ids


class _Tokens:
    """A tokenizer as the package wants it, in which foreign text has no special tokens."""

    def __init__(self, inner: Any, spelling: Spelling) -> None:
        self._inner, self._spelling = inner, spelling
        self.name_or_path = inner.name_or_path
        self.unk_token_id, self.eos_token_id = inner.unk_token_id, inner.eos_token_id

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return the ids of a template's text with foreign texts in it."""
        return self._spelling.encode(text)

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Return the text of tokens."""
        return str(self._inner.decode(token_ids, **options))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the ids of tokens by their spelling."""
        return self._inner.convert_tokens_to_ids(tokens)
