"""Facts of a run's model, read by the gateway: vocabulary, longest path, tokenizer (ADR 051)."""

import logging
from dataclasses import dataclass

from banyan.recipe import Recipe
from services.chassis import models
from services.chassis.model_checks import model_files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model.

    If nothing is known, the store checks no segment against them and no node can join.

    vocabulary: token ids are below it; 0 if unknown.
    longest_path: tokens with the prompt; 0 for any number.
    tokenizer: content of its tokenizer.json.
    """

    vocabulary: int = 0
    longest_path: int = 0
    tokenizer: bytes = b""


NOTHING_KNOWN = ModelFacts()


def read(recipe: Recipe) -> ModelFacts:
    """Return the facts of a recipe's model.

    Nothing is known for the scripted engine, or of a model that is not on this host.
    """
    folder = None if recipe.resources.engine == "scripted" else models.present(recipe.model)
    if folder is None or not (folder / "config.json").is_file():
        return NOTHING_KNOWN
    config = model_files.text_config(folder)
    vocabulary, longest = config.get("vocab_size"), config.get("max_position_embeddings")
    tokenizer = folder / "tokenizer.json"
    if not isinstance(vocabulary, int) or vocabulary < 1:
        log.warning(
            "%s names no vocab_size: segments are not checked against it, and no node can join",
            folder / "config.json",
        )
        return NOTHING_KNOWN
    return ModelFacts(
        vocabulary=vocabulary,
        longest_path=longest if isinstance(longest, int) and longest > 0 else 0,
        tokenizer=tokenizer.read_bytes() if tokenizer.is_file() else b"",
    )
