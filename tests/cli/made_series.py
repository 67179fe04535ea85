"""Series of metrics, made by curves for rules of the diagnostic index."""

from collections.abc import Callable

from banyan.doctor.series import Measured, Series, series

STEPS = 30
Curve = Callable[[float], float]  # 0..1 → value
HEALTHY: dict[str, Curve] = {
    "reward": lambda t: 0.2 + 0.6 * t,
    "entropy": lambda t: 1.2 - 0.6 * t,
    "distinct_answers": lambda t: 0.8 - 0.5 * t,
    "duplicate_share": lambda t: 0.2 + 0.4 * t,
    "completion_tokens": lambda t: 6.0,
    "completion_tokens_median": lambda t: 5.0,
    "completion_tokens_p99": lambda t: 12.0,
    "length_limited_share": lambda t: 0.1,
    "zero_variance_share": lambda t: 0.4,
    "all_right_share": lambda t: 0.3 * t,
    "all_wrong_share": lambda t: 0.3 - 0.2 * t,
    "malformed_share": lambda t: 0.02,
    "unscorable_share": lambda t: 0.0,
    "mismatch_kl": lambda t: 0.0004,
    "ess": lambda t: 0.99,
    "clip_fraction": lambda t: 0.01,
    "staleness_mean": lambda t: 0.0,
    "replay_share": lambda t: 0.0,
    "not_finite": lambda t: 0.0,
    "applied": lambda t: 1.0,
    "grad_norm": lambda t: 1.5 - t,
    "relative_rate": lambda t: 0.0003,
    "start_kl": lambda t: 0.5 * t,
}
RISING = (Measured(0, 0.2, 300), Measured(30, 0.75, 300))


def made(
    changes: dict[str, Curve] | None = None,
    held_out: tuple[Measured, ...] = RISING,
    steps: int = STEPS,
) -> Series:
    """Return a run with a little noise in every number."""
    curves = HEALTHY | (changes or {})
    wobble = [0.01 * ((7 * n) % 5 - 2) for n in range(steps)]
    rows = [
        (
            n + 1,
            {name: curve(n / (steps - 1)) * (1.0 + wobble[n]) for name, curve in curves.items()},
        )
        for n in range(steps)
    ]
    return series(rows, held_out)


def flat(value: float) -> Curve:
    return lambda t: value
