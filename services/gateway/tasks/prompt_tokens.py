"""The tokens of prompts as nodes make them, from chat template and tokenizer (ADR 051).

The store checks a joined node's prompt against their digest; torch is not needed. A template that
asks for the time, or that needs more than Jinja, would give other tokens than a node's, or none.
For such a model no digest is given, and the log says so once.
"""

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from banyan.digest import blake
from banyan.recipe import Recipe
from services.chassis import models

log = logging.getLogger(__name__)
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
TokenDigest = tuple[int, bytes]  # number of tokens, BLAKE2b-256 of them as little-endian int32
UNKNOWN: TokenDigest = (0, b"")


class PromptTokens:
    """The tokenizer of a model folder, with its chat template if it has one."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = _json(folder / "tokenizer_config.json")
        self._names = {name: _text(config[name]) for name in _NAMED if config.get(name)}
        template = _template(folder, config)
        self._template = None if template is None else _environment().from_string(template)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids up to the begin of the answer.

        Without a template the texts are joined by line ends.
        """
        if self._template is None:
            text = "\n".join(m["content"] for m in messages) + "\n"
            return list(self._tokenizer.encode(text).ids)
        text = self._template.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._names
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @lru_cache(1024)  # noqa: B019  # the trees of a group share a prompt; one object a model
    def digest(self, messages_json: str) -> TokenDigest:
        """Return length and digest of a tree's prompt, given as JSON of its messages.

        UNKNOWN if the template refuses it.
        """
        try:
            ids = np.array(self.encode(json.loads(messages_json)), "<i4")
        except jinja2.TemplateError as error:
            log.warning(
                "the chat template refuses prompts like %.80s: %s; joined nodes' are not checked",
                messages_json,
                error,
            )
            return UNKNOWN
        return len(ids), blake(ids.tobytes())


def of(recipe: Recipe) -> PromptTokens | None:
    """Return the tokenizer of a recipe's prompts.

    None if its model is not on this host, or if its nodes make tokens in another way.
    """
    folder = None if recipe.resources.engine == "scripted" else models.present(recipe.model)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    return _load(folder)


@lru_cache(8)
def _load(folder: Path) -> PromptTokens | None:
    try:
        return PromptTokens(folder)
    except Exception as error:  # `tokenizers` raises Exception itself
        log.warning(
            "joined nodes' prompts are not checked: the tokenizer of %s cannot be used: %s",
            folder,
            error,
        )
        return None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    template = file.read_text() if file.is_file() else config.get("chat_template")
    if isinstance(template, list):  # several, by name
        defaults = (entry["template"] for entry in template if entry.get("name") == "default")
        template = next(defaults, None)
    if template is not None and "strftime_now" in template:
        raise ValueError("its chat template asks for the time")
    return template


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}
