"""A tiny random model that speaks ChatML with one token a byte."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.faults.harness import tiny_model

BEGIN, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write the model and its tokenizer; return the folder."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), BEGIN, END]
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(BEGIN, special=True), AddedToken(END, special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END)
    tokenizer.chat_template = template
    tiny_model(folder, vocab=258)
    tokenizer.save_pretrained(folder)
    return folder
