"""The JSON that says how a tree grows (`TreeSpec.generate_json`): its fields, types and defaults.

The gateway writes it, nodes grow by it, the store bounds segments by it and the learner builds the
tree policy from it; all do so through GenerateSpec.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from banyan.environments.hosting import Hosting
from banyan.environments.renderers import OURS, ModelWords, RendererSpec
from banyan.errors import InvalidInput
from banyan.segment import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """An environment with its settings, and what a path may ask of it.

    name: environment, a registered name
    settings: its settings
    turns: actions that a path may have
    answer_chars: characters of an answer that a path gets; a longer one is cut in its middle
    hosting: where a class of the user's own runs; None for a registered environment
    renderer: writes the turns of answers
    episode_s: time in which a tree's actions are answered, s; 0 for any
    longest_path: tokens of a path with its prompt, as the model has positions; 0 for any
    deterministic: an action whose processor time is over gets no answer
    words: the model's, by which the store renders answers again; None if the gateway lacks them
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    turns: int = 8
    answer_chars: int = 2000
    hosting: Hosting | None = None
    renderer: RendererSpec = OURS
    episode_s: float = 0.0
    longest_path: int = 0
    deterministic: bool = False
    words: ModelWords | None = None

    @classmethod
    def of(cls, values: Any) -> "EnvironmentSpec":
        """Return the spec of plain data. Raises TypeError, ValueError or KeyError."""
        return cls(
            name=_text(values["name"]),
            settings=_object(values["settings"]),
            turns=int(values["turns"]),
            answer_chars=int(values["answer_chars"]),
            hosting=Hosting.of(values["hosting"]) if values.get("hosting") else None,
            renderer=_renderer(values.get("renderer")),
            episode_s=float(values.get("episode_s", 0.0)),
            longest_path=int(values.get("longest_path", 0)),
            deterministic=bool(values.get("deterministic", False)),
            words=ModelWords(**values["words"]) if values.get("words") else None,
        )

    def plain(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        values = asdict(self)
        return {k: v for k, v in values.items() if k not in ("hosting", "words") or v is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSpec:
    """A tree policy with its settings, and the sampling of its tokens.

    name: tree policy, a registered name or module:attribute
    max_new_tokens: tokens of the answer that a path may have at most
    settings: settings of the tree policy
    temperature: divides the logits; 0 takes the likeliest token
    top_p: nucleus mass; 1 for all tokens
    top_k: number of likeliest tokens that are kept; 0 for all
    stop: strings that end a path
    logit_bias: pairs of token id and the value added to its logit before the temperature
    environment: answers a path's actions; None for none
    head: whether every sampled token has the score of the policy's learned head, also where the
        tree policy asks for none
    """

    name: str
    max_new_tokens: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    environment: EnvironmentSpec | None = None
    head: bool = False

    @classmethod
    def from_json(cls, text: str) -> "GenerateSpec":
        """Return the spec of a text; fields beside `name` and `max_new_tokens` have defaults.

        Raises InvalidInput if the text is no such object. Unknown fields are ignored, so that a
        newer gateway may add some.
        """
        try:
            return cls._of(json.loads(text))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"generate_json is unusable: {error!r}") from None

    @staticmethod
    def environment_in(text: str) -> EnvironmentSpec | None:
        """Return the environment of a text alone; None for none.

        Raises InvalidInput if the text or the environment is unusable.
        """
        try:
            values = json.loads(text or "{}").get("environment")
            return EnvironmentSpec.of(values) if values is not None else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"generate_json is unusable: {error!r}") from None

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> "GenerateSpec":
        fields_read: dict[str, Any] = {
            name: read(values[name]) for name, read in _READ.items() if name in values
        }
        return cls(**fields_read)

    def to_json(self) -> str:
        """Return the spec as text, without an empty logit bias or a head that is not asked for."""
        values: dict[str, Any] = {
            "name": self.name,
            "settings": dict(self.settings),
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": list(self.stop),
        }
        if self.logit_bias:
            values["logit_bias"] = [list(pair) for pair in self.logit_bias]
        if self.environment is not None:
            values["environment"] = self.environment.plain()
        if self.head:
            values["head"] = True
        return json.dumps(values)

    def sampling(self, seed: int) -> Sampling:
        """Return the sampling parameters of a tree with this seed."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            bias=self.logit_bias,
            seed=seed,
        )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value


def _renderer(values: Any) -> RendererSpec:
    """Return the renderer of plain data; specs of before there were several have none."""
    if values is None:
        return OURS
    return RendererSpec(
        name=_text(values["name"]),
        version=_text(values["version"]),
        settings=_object(values["settings"]),
    )


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(_text(value) for value in values)


def _bias(pairs: Any) -> tuple[tuple[int, float], ...]:
    return tuple((int(token), float(added)) for token, added in pairs)


_READ: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "settings": _object,
    "max_new_tokens": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "stop": _texts,
    "logit_bias": _bias,
    "environment": EnvironmentSpec.of,
    "head": bool,
}
