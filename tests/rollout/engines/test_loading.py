"""From a model folder to trees: tokenizer, arithmetic, weights, and the recipe's engine."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from banyan.errors import InvalidInput
from banyan.recipe_loader.load import resolve
from banyan.segment import Kind
from services.rollout.engines.factory import maker
from services.rollout.engines.torch_engine import loading
from tests.rollout.conftest import forced, save_weights, tiny_llama
from tests.rollout.growing import TREEPO, grow, spec

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}answer{% endif %}"
)


def save_tokenizer(folder, template=TEMPLATE):
    words = ["<unk>", "<end>", "user", "answer", *map(str, range(50))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>")
    fast.chat_template = template
    fast.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(path)
    save_tokenizer(path)
    return path


def recipe(folder, **resources):
    return resolve(
        {"name": "x", "model": str(folder), "task": {"name": "arithmetic"}, "resources": resources}
    )


def test_the_recipes_engine_grows_trees_with_true_logprobs(folder):
    engine = maker(recipe(folder, dtype="float32", max_branches=4, kv_tokens=512), 1)()
    grower, _ = grow(spec(TREEPO, {"segment": 3, "max_depth": 3, "width": 6}, 9), engine)
    model, root = tiny_llama(), grower.tree.root
    assert (
        engine.tokenizer.decode(root.tokens_T) == "user <unk> answer".replace("<unk> ", "")
        and 1 in engine.tokenizer.eos
    )
    assert len(grower.leaves) == 6
    for segment in grower.tree:
        if segment.kind is Kind.POLICY:
            prefix = grower.tree.prefix_tokens(segment.parent, segment.fork)
            assert np.abs(forced(model, prefix, segment.tokens_T) - segment.logprobs_T).max() < 1e-4


def test_a_folder_without_a_template_gets_plain_text(folder, tmp_path):
    save_tokenizer(tmp_path, template=None)
    tokenizer = loading.ChatTokenizer(tmp_path, tiny_llama())
    ids = tokenizer.encode_chat([{"role": "user", "content": "7 8"}])
    assert tokenizer.decode(ids) == "7 8"
    assert tokenizer.decode(tokenizer.encode("7 8")) == "7 8" and len(tokenizer.encode("")) == 0


def test_weights_are_taken_in_place_and_in_the_engines_arithmetic(tmp_path):
    model = tiny_llama(0).to(torch.bfloat16)
    _, path = save_weights(tmp_path, tiny_llama(1), 1)
    loading.load_weights(model, path)
    for name, value in tiny_llama(1).state_dict().items():
        assert torch.equal(model.state_dict()[name], value.bfloat16())
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_what_cannot_be_loaded_is_said_plainly(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="cannot load a model from"):
        loading.load_model(tmp_path, torch.float32, torch.device("cpu"))
    assert loading.choose_dtype("float32", torch.device("cpu")) is torch.float32
    assert loading.choose_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16
