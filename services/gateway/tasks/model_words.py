"""The words of a run's model, by which the treestore renders the answers of joined nodes again."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from banyan.environments.renderers import ModelWords
from banyan.recipe import Recipe
from services.chassis import models

_NAMES = ("bos_token", "eos_token", "unk_token")


def of(recipe: Recipe) -> ModelWords | None:
    """Return the words of a recipe's model.

    None for the scripted engine, and for a model that is not on this host.
    """
    folder = None if recipe.resources.engine == "scripted" else models.present(recipe.model)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    return read(folder)


@lru_cache(8)
def read(folder: Path) -> ModelWords:
    """Return the words of the model in a folder, as its nodes read them."""
    config = _json(folder / "tokenizer_config.json")
    words = {**_json(folder / "special_tokens_map.json"), **config}
    bos, eos, unknown = (_text(words.get(name)) for name in _NAMES)
    has_template = bool(config.get("chat_template")) or (folder / "chat_template.jinja").is_file()
    return ModelWords(has_template, bos, eos, unknown)


def _text(token: Any) -> str:
    """Return the spelling of a token; empty for none."""
    return str(token["content"] if isinstance(token, dict) else token) if token else ""


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}
