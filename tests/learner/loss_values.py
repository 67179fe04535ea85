"""Values, measures and gradients of losses on hand-made tokens."""

from typing import Any

from services.learner import losses
from services.learner.losses.aggregate import Totals
from services.learner.losses.composed import Measures
from tests.learner.hand_made_tokens import table, tokens

ONE = Totals(tokens=1, paths=1, unique=1.0)


def value(
    name: str, settings: dict[str, Any], logp: Any, totals: Totals = ONE, **more: Any
) -> tuple[float, Measures]:
    loss, measures = losses.build(name, settings).compute(tokens(logp, **more), totals)
    return float(loss), measures


def gradient(name: str, settings: dict[str, Any], logp: list[float], **more: Any) -> list[float]:
    leaf = table(logp).requires_grad_()
    totals = Totals(tokens=len(logp), paths=1, unique=len(logp))
    losses.build(name, settings).compute(tokens(leaf, **more), totals)[0].backward()
    assert leaf.grad is not None
    return (leaf.grad[0] * len(logp)).tolist()
