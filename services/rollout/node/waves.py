"""Which trees may start now: a wave together and in logical order, so that a deterministic run repeats (PROTOCOL 5)."""

from collections.abc import Sequence

from services.rollout.node.active_trees import ActiveTree

WAVE_WAIT_S = (
    5.0  # after the last arrival; a wave that a dead node left in part is never whole again
)


def startable(pending: Sequence[ActiveTree], now: float) -> list[list[ActiveTree]]:
    """Those that need not wait for others: waves by name, each in the order in which its trees start."""
    waves: dict[str, list[ActiveTree]] = {}
    for live in pending:
        waves.setdefault(live.wave, []).append(live)
    return [
        sorted(trees, key=lambda live: live.spec.order)
        for _, trees in sorted(waves.items())
        if _whole(trees, now)
    ]


def _whole(trees: Sequence[ActiveTree], now: float) -> bool:
    if not trees[0].wave or len(trees) >= trees[0].wave_size:
        return True
    return now - max(live.since for live in trees) > WAVE_WAIT_S
