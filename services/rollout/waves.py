"""Which trees may start now: a wave together and in logical order, so that a deterministic run repeats (PROTOCOL 5)."""

from collections.abc import Sequence

from services.rollout.live import Live

WAVE_WAIT_S = 5.0  # after the last arrival; a wave that a dead node left in part is never whole again


def startable(pending: Sequence[Live], now: float) -> list[Live]:
    """Those that need not wait for others of their wave, in the order in which they start."""
    waves: dict[str, list[Live]] = {}
    for live in pending:
        waves.setdefault(live.wave, []).append(live)
    ready: list[Live] = list(waves.pop("", ()))
    for trees in waves.values():
        whole = len(trees) >= trees[0].wave_size
        if whole or now - max(live.since for live in trees) > WAVE_WAIT_S:
            ready += sorted(trees, key=lambda live: live.spec.order)
    return ready
