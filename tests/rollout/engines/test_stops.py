"""Stop strings: the result of a search of the whole text, from its end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from banyan.environments.renderers import RendererSpec
from banyan.segment import IntTokens
from services.chassis.renderers.port import Renderer
from services.rollout.engines.torch_engine.stop_strings import completed
from tests.system.tiny import byte_tokenizer


class Counting:
    """A Hugging Face tokenizer that counts the tokens it decodes."""

    eos: frozenset[int] = frozenset()

    def __init__(self, inner: Any) -> None:
        self.inner, self.decoded = inner, 0

    def encode(self, text: str) -> IntTokens:
        return np.array(self.inner(text, add_special_tokens=False)["input_ids"], np.int32)

    def renderer(self, spec: RendererSpec) -> Renderer:
        raise NotImplementedError("nothing is answered here")

    def encode_chat(self, messages: Any) -> IntTokens:
        raise NotImplementedError

    def decode(self, tokens: IntTokens) -> str:
        self.decoded += len(tokens)
        return str(self.inner.decode(tokens.tolist(), skip_special_tokens=True))


def in_bytes(folder: Path) -> Any:
    """Return a tokenizer of one token a byte; the last one is special."""
    byte_tokenizer(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def in_pieces(folder: Path) -> Any:
    """Return a tokenizer like SentencePiece.

    It has words with a space before, long runs, and bytes where there is no word.
    """
    words = [
        "<unk>",
        "<end>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *"abSTOP#\n",
        "▁",
        "▁a",
        "▁ST",
        "OP",
        "#" * 60,
        "▁b##",
    ]
    inner = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>")
    )
    parts = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    inner.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")


@pytest.fixture(scope="module", params=[in_bytes, in_pieces])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Counting:
    return Counting(request.param(tmp_path_factory.mktemp("tokenizer")))


def first(stops: tuple[str, ...], tokens: list[int], tokenizer: Counting, ask: Any) -> int | None:
    """Return the number of tokens after which a branch stops."""
    return next((n for n in range(1, len(tokens) + 1) if ask(stops, tokens[:n], tokenizer)), None)


def whole(stops: tuple[str, ...], tokens: list[int], tokenizer: Counting) -> bool:
    text = tokenizer.decode(np.array(tokens, np.int32))
    return any(stop in text for stop in stops)


STOPS = (
    ("STOP",),
    ("\n\n",),
    ("é",),
    ("日本語", "STOP#"),
    ("\N{BANANA}a",),
    (" a ST",),
    ("#" * 70,),
)


@pytest.mark.parametrize("stops", STOPS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_branch_stops_where_its_whole_text_does(
    tokenizer: Counting, stops: tuple[str, ...], data: Any
) -> None:
    count = len(tokenizer.inner)
    some = st.integers(0, count - 1) | st.integers(count - 15, count - 1)
    before = data.draw(st.lists(some, min_size=0, max_size=150))
    after = tokenizer.encode(stops[-1]).tolist()
    repeated = (
        data.draw(st.lists(st.sampled_from(after), max_size=150))
        if data.draw(st.booleans())
        else []
    )
    tokens = [*before, *repeated, *after, *before[:3]]
    assert first(stops, tokens, tokenizer, completed) == first(stops, tokens, tokenizer, whole)


def test_bytes_that_only_their_end_makes_characters_of_stop_nothing(tmp_path: Path) -> None:
    """A decoder of pieces replaces a whole run of bytes for one wrong byte, however far."""
    tokenizer = Counting(in_pieces(tmp_path))
    wrong = tokenizer.inner.convert_tokens_to_ids("<0xFF>")
    tokens = [wrong, *tokenizer.encode("é" * 60).tolist()]
    assert first(("é",), tokens[1:], tokenizer, completed) == 2
    assert first(("é",), tokens, tokenizer, whole) is None
    assert first(("é",), tokens, tokenizer, completed) is None


@pytest.mark.parametrize("text", ["ab", "日本", "\N{BANANA}"])
def test_a_long_answer_is_not_decoded_again_at_each_token(tokenizer: Counting, text: str) -> None:
    tokens = tokenizer.encode(text * 1000).tolist()
    begun = tokenizer.decoded
    for n in range(1, len(tokens) + 1):
        assert not completed(("STOP", "###"), tokens[:n], tokenizer)
    assert tokenizer.decoded - begun < 600 * len(tokens)
