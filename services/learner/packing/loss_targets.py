"""Which tokens a loss is taken on, beside the policy's own samples on the paths of leaves. Pure."""

from dataclasses import dataclass

from banyan.segment import Origin


@dataclass(frozen=True, slots=True)
class Taught:
    """forced: origins of FORCED segments that take part; all others are context. pairs: pairs of siblings instead of paths
    (`best` or `all`, empty for none), whose advantages differ by `margin` at least."""

    forced: frozenset[Origin] = frozenset()
    pairs: str = ""
    margin: float = 0.0


PATHS = Taught()
