"""Renderers: the code that writes the turns of a model's conversations, chosen by the exact name.

A name says nothing about another model of its kind: a checkpoint that was trained further may
write turns otherwise. Its recipe names the renderer itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from banyan.errors import InvalidInput

CHATML = "chatml"
PACKAGE = "0.1.12"
"""Version of the package `renderers` that pyproject.toml pins."""
VERSIONS: Mapping[str, str] = {CHATML: "1", "llama-3": PACKAGE, "qwen3": PACKAGE}
"""Known renderers with their versions; all but ours are the package's."""
SETTINGS: Mapping[str, Mapping[str, type]] = {
    "llama-3": {"date_string": str},
    "qwen3": {"enable_thinking": bool},
}
"""Settings that a renderer takes, with their types."""
_QWEN3 = ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
_QWEN3_2507 = ("4B", "30B-A3B")
MODELS: Mapping[str, str] = {
    "SmolLM2-135M-Instruct": CHATML,
    **{f"Qwen/Qwen3-{size}": "qwen3" for size in _QWEN3},
    **{f"Qwen/Qwen3-{size}-Instruct-2507": "qwen3" for size in _QWEN3_2507},
    **{f"Qwen/Qwen3-{size}-Thinking-2507": "qwen3" for size in _QWEN3_2507},
    **{f"meta-llama/Llama-3.2-{size}-Instruct": "llama-3" for size in ("1B", "3B")},
}
"""Renderers of models by exact name. Any other model has chatml, which refuses other templates."""


@dataclass(frozen=True, slots=True)
class RendererSpec:
    """A renderer, as the spec of a tree has it.

    name: a known renderer
    version: its version; a node with another one refuses the tree
    settings: its settings
    """

    name: str = CHATML
    version: str = VERSIONS[CHATML]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"renderer {self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class ModelWords:
    """The tokens with a meaning of their own in a model's tokenizer, beside its tokenizer.json.

    Whoever has both writes the tokens of answers as nodes do, without the model's folder.

    template: whether the model has a chat template
    bos: begins a text; empty if there is none
    eos: ends one; empty if there is none
    unknown: stands for words that are not in the vocabulary; empty if there is none
    """

    template: bool
    bos: str = ""
    eos: str = ""
    unknown: str = ""


OURS = RendererSpec()
"""The renderer of specs that name none."""


def choose(model: str, name: str | None, settings: Mapping[str, Any]) -> RendererSpec:
    """Return the named renderer, or the model's own if no name is given.

    Raises InvalidInput for an unknown one, and for settings that it does not take.
    """
    name = name or MODELS.get(model, CHATML)
    if name not in VERSIONS:
        raise InvalidInput(
            f"there is no renderer {name!r}; known: {', '.join(VERSIONS)}. Each is tested with"
            " texts that spell special tokens; others are not"
        )
    takes = SETTINGS.get(name, {})
    for key, value in settings.items():
        if key not in takes:
            known = ", ".join(takes) or "none"
            raise InvalidInput(f"renderer {name} has no setting {key!r}; it takes: {known}")
        if not isinstance(value, takes[key]):
            kind = "true or false" if takes[key] is bool else "a text"
            raise InvalidInput(f"{key} of renderer {name} must be {kind}, got {value!r}")
    return RendererSpec(name, VERSIONS[name], dict(settings))
