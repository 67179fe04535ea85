"""Tokens that a loss is taken on, besides the policy's own samples on the paths of leaves. Pure."""

from dataclasses import dataclass

from banyan.segment import Origin


@dataclass(frozen=True, slots=True)
class LossTargets:
    """Tokens and paths that take part in a loss.

    forced: origins of FORCED segments that are trained on; all others are context.
    pairs: `best` or `all` for pairs of siblings instead of whole paths; empty for paths.
    margin: least difference of the advantages of a pair.
    silent: whether paths of groups that teach nothing count in the loss's means.
    """

    forced: frozenset[Origin] = frozenset()
    pairs: str = ""
    margin: float = 0.0
    silent: bool = False


PATHS = LossTargets()
