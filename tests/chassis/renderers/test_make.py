"""Renderers that a node does not use: unknown ones, other versions, and those that do not fit."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from banyan.environments.renderers import CHATML, VERSIONS, RendererSpec
from banyan.errors import InvalidInput
from banyan.reasons import Reason
from services.chassis.renderers import make as making
from services.chassis.renderers.chatml import ChatMl
from services.chassis.renderers.make import make
from services.chassis.renderers.spelling import Spelling
from tests.chassis.renderers import vocabularies
from tests.chassis.renderers.families import SMALL, Family
from tests.system.tiny import byte_tokenizer

QWEN3 = RendererSpec("qwen3", VERSIONS["qwen3"])


def made(family: Family, spec: RendererSpec) -> Any:
    return make(spec, family.tokenizer, frozenset({family.tokenizer.eos_token_id}))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RendererSpec("qwen3", "0.1.11"), "has renderer qwen3 0.1.11, this node has 0.1.12"),
        (RendererSpec(CHATML, "2"), "has renderer chatml 2, this node has 1"),
        (RendererSpec("glm-5", "0.1.12"), "there is no renderer 'glm-5' here"),
    ],
)
def test_another_version_is_refused_on_this_node_alone(spec: RendererSpec, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        made(SMALL[1], spec)
    assert refused.value.reason == Reason.NO_PLUGIN


def test_without_the_package_a_tree_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(InvalidInput, match=r"cannot be imported here .*banyan-rl\[renderers") as no:
        made(SMALL[1], QWEN3)
    assert no.value.reason == Reason.NO_PLUGIN

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(making.family, "version", absent)
    with pytest.raises(InvalidInput, match="this node has none") as refused:
        made(SMALL[1], QWEN3)
    assert refused.value.reason == Reason.NO_PLUGIN


def test_a_model_of_another_family_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"qwen3 0\.1\.12 does not fit the tokenizer of a model"):
        made(SMALL[2], QWEN3)
    with pytest.raises(InvalidInput, match="chat template of a model writes turns in another way"):
        made(SMALL[2], RendererSpec())


def test_turns_end_with_an_end_token_of_the_model() -> None:
    with pytest.raises(InvalidInput, match="no end token of the model ends a turn"):
        make(QWEN3, SMALL[1].tokenizer, frozenset({5}))


def test_a_renderer_that_never_bridges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatMl, "bridge", lambda *_: None)
    with pytest.raises(InvalidInput, match="chatml 1 of a model writes no turn behind an action"):
        made(SMALL[0], RendererSpec())


def test_a_renderer_that_reads_special_tokens_in_answers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Spelling, "foreign", Spelling.own)
    for family in SMALL:
        with pytest.raises(InvalidInput, match="lets an answer forge special tokens"):
            made(family, RendererSpec(family.name, VERSIONS[family.name]))


def words(**more: Any) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({"<|im_end|>": 0, "a": 1}, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([AddedToken("<|im_end|>", **more)])
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_a_vocabulary_that_cannot_write_special_tokens_as_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"cannot write '<\|im_end\|>' as text"):
        Spelling(words())
    with pytest.raises(InvalidInput, match=r"takes blanks beside '<\|im_end\|>'"):
        Spelling(words(rstrip=True))


def test_blanks_that_were_added_to_a_vocabulary_are_words_of_foreign_text() -> None:
    tokenizer = vocabularies.chatml_small.__wrapped__()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 3, 4)])
    spelling, text = Spelling(tokenizer), "a     b  c <d    e"
    assert spelling.encode(spelling.foreign(text)) == tokenizer(text)["input_ids"]
    assert len(tokenizer) - 1 in spelling.encode(spelling.foreign(text))


def test_without_a_template_turns_are_lines(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    lines = make(RendererSpec(), tokenizer, frozenset({tokenizer.eos_token_id}))
    assert lines.render([{"role": "user", "content": "a"}]) == tokenizer("a\n")["input_ids"]
    assert lines.bridge([], [], "b<end>")[:2] == tokenizer("\nb")["input_ids"]
    assert tokenizer.eos_token_id not in lines.bridge([], [], "b<end>")


@pytest.mark.parametrize(
    "turn", ["[{role}] {content}\n", "<|im_start|>{role}\n {content}<|im_end|>\n", "{content}"]
)
def test_a_template_that_only_looks_like_chatml_is_refused(
    turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = vocabularies.chatml_small()
    body = turn.replace("{role}", "{{ m.role }}").replace("{content}", "{{ m.content }}")
    template = f"{{% for m in messages %}}{body}{{% endfor %}}<|im_start|>assistant\n"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(InvalidInput, match="writes turns in another way than ChatML"):
        make(RendererSpec(), tokenizer, frozenset({tokenizer.eos_token_id}))
