"""Families under test, and conversations of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from banyan.environments.renderers import VERSIONS, RendererSpec
from services.chassis.renderers.make import make
from services.chassis.renderers.port import Renderer
from tests.chassis.renderers import vocabularies

PROMPT = [{"role": "user", "content": "How many are 6 * 7?"}]


@dataclass(frozen=True)
class Family:
    """A renderer with a tokenizer; role: who says answers in its template."""

    name: str
    tokens: Callable[[], Any]
    role: str = "tool"

    @property
    def tokenizer(self) -> Any:
        return self.tokens()

    @property
    def renderer(self) -> Renderer:
        return _made(self)

    def ids(self, text: str) -> list[int]:
        """Return what a policy samples to say a text."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def whole(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return a conversation as the model's template writes it, up to the next answer."""
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return self.ids(text)

    def special(self, ids: Sequence[int]) -> list[int]:
        """Return the added tokens among some."""
        added = self.tokenizer.added_tokens_decoder
        return [id_ for id_ in ids if id_ in added]

    def words(self) -> list[str]:
        """Return the spelling of all added tokens."""
        return [token.content for token in self.tokenizer.added_tokens_decoder.values()]

    def bridged(self, text: str, action: str = "<calc>6*7</calc>") -> list[int]:
        """Return the tokens behind a first action."""
        ids = self.renderer.bridge(self.renderer.render(PROMPT), self.ids(action), text)
        assert ids is not None
        return ids

    def __str__(self) -> str:
        return self.tokens.__name__


@cache
def _made(family: Family) -> Renderer:
    spec = RendererSpec(family.name, VERSIONS[family.name])
    return make(spec, family.tokenizer, frozenset({family.tokenizer.eos_token_id}))


SMALL = (
    Family("chatml", vocabularies.chatml_small, "user"),
    Family("qwen3", vocabularies.qwen3_small),
    Family("llama-3", vocabularies.llama3),
)
OWN = (Family("chatml", vocabularies.smollm2, "user"), Family("qwen3", vocabularies.qwen3))
