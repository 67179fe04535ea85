"""The gateway makes the tokens of prompts that a node makes, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from services.gateway.tasks import prompt_tokens
from services.gateway.tasks.prompt_tokens import PromptTokens

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n{% if m.role == 'user' %}U {{ m.content | trim }}"
    "{% else %}S {{ m.content }}{% endif %}\n{% endfor %}\n"
    "{% if add_generation_prompt %}A {% endif %}"
)
_MESSAGES = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "  what is 2 + 2 ?  "},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = ["[UNK]", "<s>", "U", "S", "A", "be", "short", "what", "is", "2", "+", "?"]
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def _config(folder: Path, **more: object) -> None:
    config = {
        "bos_token": "<s>",
        "unk_token": "[UNK]",
        "tokenizer_class": "PreTrainedTokenizerFast",
        **more,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("template", [_TEMPLATE, None])
def test_the_tokens_are_those_that_a_node_makes(folder: Path, template: str | None) -> None:
    from types import SimpleNamespace

    from services.rollout.engines.torch_engine.loading import ChatTokenizer

    _config(folder, **({"chat_template": template} if template else {}))
    config = SimpleNamespace(eos_token_id=None)
    theirs = ChatTokenizer(
        folder, SimpleNamespace(config=config, generation_config=config)
    ).encode_chat(_MESSAGES)
    ours = PromptTokens(folder)
    assert ours.encode(_MESSAGES) == theirs.tolist() and len(theirs) > 6
    assert ours.digest(json.dumps(_MESSAGES))[0] == len(theirs)


def test_of_a_template_that_asks_for_the_time_or_refuses_nothing_is_said(folder: Path) -> None:
    _config(folder, chat_template="{{ strftime_now('%d') }}")
    assert prompt_tokens._load(folder) is None
    _config(folder, chat_template="{{ raise_exception('no system message') }}")
    assert PromptTokens(folder).digest(json.dumps(_MESSAGES)) == prompt_tokens.UNKNOWN


def test_the_gateway_loads_no_model_library() -> None:
    code = (
        "import sys, services.gateway.tasks.prompt_tokens;"
        " print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
