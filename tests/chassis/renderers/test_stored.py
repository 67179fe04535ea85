"""Renderers of a tokenizer.json and a few words: their answers are those of the whole tokenizer."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from banyan.environments.renderers import VERSIONS, ModelWords, RendererSpec
from banyan.errors import InvalidInput
from services.chassis.renderers import stored
from services.chassis.renderers.stored import Bridge
from services.gateway.tasks import model_words
from tests.chassis.renderers.families import OWN, PROMPT, SMALL, Family
from tests.system.tiny import byte_tokenizer


@cache
def _bridge(family: Family, folder: Path) -> Bridge:
    """Return what a store makes of the files that a gateway reads."""
    family.tokenizer.save_pretrained(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    spec = RendererSpec(family.name, VERSIONS[family.name])
    return stored.bridge_of(spec, model_words.read(folder), tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def _same(family: Family, folder: Path, texts: list[str]) -> None:
    bridge = _bridge(family, folder / str(family))
    context = family.renderer.render(PROMPT)
    for text in texts:
        action = family.ids("<calc>6*7</calc>")
        said = family.renderer.bridge(context, action, text)
        assert said is not None and bridge.bridge(context, action, text) == said
        context = [*context, *action, *said]


@pytest.mark.parametrize("family", SMALL, ids=str)
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3))
def test_answers_are_those_of_the_nodes(family: Family, folder: Path, texts: list[str]) -> None:
    _same(family, folder, [*texts, "".join(family.words()[:12]), "42"])


@pytest.mark.slow
@pytest.mark.parametrize("family", OWN, ids=str)
def test_answers_are_those_of_the_nodes_of_real_models(family: Family, folder: Path) -> None:
    words = family.words()
    ends = family.ids("".join(words))  # no turn can follow some of them
    prompt = family.renderer.render(PROMPT)
    bridged = _bridge(family, folder / str(family)).bridge(prompt, ends, "42")
    assert bridged == family.renderer.bridge(prompt, ends, "42")
    _same(family, folder, ["42", "", "naïve \u202e ﬁ\n\n  two", "".join(words), " ".join(words)])


def test_a_model_without_a_template_has_lines(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    assert model_words.read(tmp_path) == ModelWords(template=False, eos="<end>")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    bridge = stored.bridge_of(RendererSpec(), model_words.read(tmp_path), tokenizer)
    ids = bridge.bridge([], [], "4<end>2")
    assert ids is not None and tokenizer.decode(ids, skip_special_tokens=False) == "\n4<end>2\n"
    assert tokenizer.token_to_id("<end>") not in ids, "an answer ends no text"


def test_renderers_that_differ_in_anything_have_names_of_their_own() -> None:
    spec, words = RendererSpec("qwen3", "1"), ModelWords(template=True, eos="<end>")
    others = [
        (replace(spec, name="llama-3"), words),
        (replace(spec, version="2"), words),
        (replace(spec, settings={"enable_thinking": False}), words),
        (replace(spec, settings={"enable_thinking": True}), words),
        (spec, replace(words, template=False)),
        (spec, replace(words, unknown="<unk>")),
    ]
    assert len({stored.key_of(*made) for made in [(spec, words), *others]}) == 7


@pytest.mark.parametrize("spec", [RendererSpec("none"), RendererSpec("chatml", "0")], ids=str)
def test_another_version_is_refused(tmp_path: Path, spec: RendererSpec) -> None:
    byte_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InvalidInput, match="renderer") as refused:
        stored.bridge_of(spec, model_words.read(tmp_path), tokenizer)
    assert refused.value.reason == "NO_PLUGIN"
