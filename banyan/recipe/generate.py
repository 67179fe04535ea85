"""Growth of trees."""

import struct
from typing import Annotated, Any

from pydantic import Field, model_validator

from banyan.recipe.part import Bias, Name, Part, Settings, Token


class Generate(Part):
    """Growth of trees."""

    LATER = frozenset({"logit_bias"})

    policy: Name = "iid"
    """Tree policy: a registered name or module:attribute."""
    settings: Settings = {}
    """Settings of the tree policy."""
    trees: Annotated[int, Field(ge=1, le=1024)] = 1
    """Trees per group (prompt row)."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    """Policy tokens that a path may hold at most."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Divides the logits, in sampling and in the learner alike."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus mass; below 1 the recipe must allow truncated sampling."""
    top_k: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Likeliest tokens kept; 0 for all."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Strings that end a path, besides the model's end token."""
    logit_bias: Annotated[dict[Token, Bias], Field(max_length=1024)] = {}
    """Numbers that are added to logits before the temperature, by token id; the recipe must allow
    truncated sampling."""

    @model_validator(mode="before")
    @classmethod
    def _ids(cls, values: Any) -> Any:
        """Convert token ids that are texts, as keys are in JSON."""
        bias = values.get("logit_bias") if isinstance(values, dict) else None
        if isinstance(bias, dict):
            read = {
                int(token) if isinstance(token, str) and token.isdecimal() else token: b
                for token, b in bias.items()
            }
            values = {**values, "logit_bias": read}
        return values

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """Numbers added to logits, as segments keep them: float32, ascending by token, without
        zeros."""
        pairs = (
            (token, struct.unpack("<f", struct.pack("<f", added))[0])
            for token, added in self.logit_bias.items()
        )
        return tuple(sorted((token, added) for token, added in pairs if added))
