"""A line chart as SVG that reads without scripts. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360.0, 170.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 14.0, 12.0, 26.0
_MOST = 400  # points that are drawn of a curve
_DECIMALS = 4  # most of a number beside the curve


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure over steps.

    points: (step, value), by step; values that are not finite are left out
    bounds: (step, low, high), of an interval around some of the values
    share: whether it is shown in percent
    """

    name: str
    points: Sequence[tuple[float, float]]
    bounds: Sequence[tuple[float, float, float]] = ()
    share: bool = False


def drawn(curve: Curve) -> str:
    """Return the SVG text of a curve; empty for fewer than two points."""
    points = [(x, y) for x, y in curve.points if math.isfinite(x) and math.isfinite(y)]
    if len(points) < 2:
        return ""
    values = [y for _, y in points] + [v for _, low, high in curve.bounds for v in (low, high)]
    ticks, decimals = _ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]
    first, last = points[0][0], points[-1][0]

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - low) / (high - low)
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM),
        )

    title = f"{curve.name}: {_figure(points[0][1], curve.share)} at step {first:g}, "
    title += f"{_figure(points[-1][1], curve.share)} at step {last:g}"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in _thinned(points)))
    parts = [
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        *(_rule(at(first, y)[1], _tick(y, decimals, curve.share)) for y in ticks),
        *(_word(at(x, low)[0], f"{x:g}", anchor) for x, anchor in _ends(first, last)),
        *(_bar(at(x, a), at(x, b)) for x, a, b in curve.bounds),
        f'<polyline class="curve" points="{path}"/>',
    ]
    if len(points) <= 40:
        dots = (at(*point) for point in points)
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in dots]
    return "".join((*parts, "</svg>"))


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Return round numbers around values, two to six of them, and the decimals that they need."""
    if low == high:
        low, high = (low, low + 1.0) if low == 0.0 else (low - abs(low) / 2, low + abs(low) / 2)
    power = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= (high - low) / 4)
    numbers = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    return [number * step for number in numbers], max(0, -math.floor(math.log10(step) + 1e-9))


def _tick(value: float, decimals: int, share: bool) -> str:
    if share:
        return f"{100 * value:.{max(0, decimals - 2)}f} %".replace("-", "−")
    text = f"{value:.{decimals}f}" if decimals <= _DECIMALS else f"{value:.2g}"
    return text.replace("-", "−")


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return means of neighbours, so many that a screen can tell them apart."""
    if len(points) <= _MOST:
        return list(points)
    size = len(points) / _MOST
    parts = [points[int(i * size) : int((i + 1) * size)] for i in range(_MOST)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts
    ]


def _figure(value: float, share: bool) -> str:
    text = f"{100 * value:.1f} %" if share else f"{value:.4g}"
    return text.replace("-", "−")


def _ends(first: float, last: float) -> list[tuple[float, str]]:
    return [(first, "start"), (last, "end")]


def _rule(y: float, words: str) -> str:
    return (
        f'<line class="rule" x1="{_LEFT:g}" x2="{WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{escape(words)}</text>'
    )


def _word(x: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{HEIGHT - 8:g}" text-anchor="{anchor}">step {escape(words)}</text>'
    )


def _bar(low: tuple[float, float], high: tuple[float, float]) -> str:
    (x, bottom), (_, top) = low, high
    return f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{top:.1f}"/>'
