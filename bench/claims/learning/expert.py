"""Rows of an expert, which are right chains of the training rows, and policies taught on them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from banyan.cli.sft import source, work
from banyan.cli.sft.options import Settings
from banyan.recipe import Recipe
from methods.control.uniform import row_of
from services.gateway.tasks import dataset

TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{{ '<|end|>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
)
"""Prompts as those of the small policy, and behind an answer the token at which it stops."""
BATCH_TOKENS = 1280  # about 16 chains of 8 operations, with their prompts


def rows(recipe: Recipe, count: int, skipped: int = 0) -> list[dict[str, Any]]:
    """Return training rows of a recipe's task, drawn with its seed.

    skipped: rows of the same draw that others are taught on
    """
    train = dataset.read(recipe, Path()).train
    drawn = range(skipped, skipped + count)
    return [dict(train[row_of(len(train), recipe.seed, place)]) for place in drawn]


def taught(recipe: Recipe, shown: Sequence[dict[str, Any]], epochs: int, to: Path) -> Any:
    """Train a recipe's model on rows as `banyan sft --rows` does; return the record of it.

    Its loss is the recipe's if that is one of labels, else −log π.

    to: folder of the taught model
    """
    file = to.with_suffix(".jsonl")
    lines = [json.dumps({"prompt": r["question"], "completion": r["answer"]}) for r in shown]
    file.write_text("\n".join(lines) + "\n")
    settings = Settings(
        epochs=epochs,
        steps=None,
        learning_rate=recipe.optimise.learning_rate,
        batch_tokens=BATCH_TOKENS,
        seed=recipe.seed,
        holdout=0.0,
        lora=None,
    )
    base = _with_ends(Path(recipe.model), to.with_name("base"))
    from_base = recipe.model_copy(update={"model": str(base)})
    return work.run(from_base, source.FromRows(file), settings, to, force=False)


def _with_ends(policy: Path, to: Path) -> Path:
    """Return a copy of a policy whose template ends answers."""
    from transformers import AutoTokenizer

    shutil.copytree(policy, to)
    tokenizer = AutoTokenizer.from_pretrained(to)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(to)
    return to
