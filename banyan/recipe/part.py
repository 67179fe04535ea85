"""Base of all parts of a recipe: kinds of values, and free settings with finite numbers."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Name = Annotated[str, Field(min_length=1, max_length=200)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,99}$")]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
_DEEPEST = 32  # levels of settings within settings


def _finite(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings; refuse nan and inf, which JSON, the stored form of a recipe, lacks."""
    _check_finite(settings, ())
    return settings


def _check_finite(value: Any, at: tuple[str | int, ...]) -> None:
    """Raise an error with the place in the settings of a number that is not finite."""
    if len(at) > _DEEPEST:
        raise PydanticCustomError(
            "too_deep", "has more than {levels} levels of settings", {"levels": _DEEPEST}
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError(
            "not_finite", "{number} is not a finite number", {"number": str(value), "below": at}
        )
    if isinstance(value, dict):
        for key, below in value.items():
            _check_finite(key, (*at, str(key)))
            _check_finite(below, (*at, str(key)))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, below in enumerate(value):
            _check_finite(below, (*at, index))


Settings = Annotated[dict[str, Any], AfterValidator(_finite)]


class Part(BaseModel):
    """Base of all parts of a recipe: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that earlier recipes lacked: with their defaults they are no part of a deterministic
    run's identity."""


def parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the parts in an annotation such as list[Filter] or Replay | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for below in get_args(annotation):
        yield from parts_in(below)
