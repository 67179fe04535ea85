"""Bars as an SVG picture: panels of horizontal bars, with dots for single measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _RIGHT = 720, 150, 70
_TITLE, _ROW, _BAR, _BELOW = 44, 34, 20, 18
_DOT, _DOTS = 4, 14  # radius, and height of the line of dots below a bar
_OURS, _OTHERS = "#3a9d5d", "#9aa5b1"


@dataclass(frozen=True)
class Bar:
    """Bar of a panel.

    length: in the panel's unit
    ours: whether it is drawn in the colour of this project
    dots: measurements that the length sums up
    """

    name: str
    length: float
    ours: bool
    dots: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Bars with one scale.

    about: conditions of the measurement, below the title
    unit: follows each bar's figure
    """

    title: str
    about: str
    unit: str
    bars: Sequence[Bar]


def drawn(panels: Sequence[Panel]) -> str:
    """Return the SVG text of panels below each other."""
    parts: list[str] = []
    top = 10
    for panel in panels:
        parts += _panel(panel, top)
        top += _TITLE + sum(_height(bar) for bar in panel.bars) + _BELOW
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}"'
            f' viewBox="0 0 {_WIDTH} {top}" role="img" font-family="sans-serif" font-size="13">',
            f"<title>{escape('; '.join(panel.title for panel in panels))}</title>",
            f'<rect width="{_WIDTH}" height="{top}" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, top: int) -> list[str]:
    longest = max(max(bar.length, *bar.dots, 0.0) for bar in panel.bars)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    parts = [
        f'<text x="16" y="{top + 16}" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="16" y="{top + 33}" font-size="11" fill="#555">{escape(panel.about)}</text>',
    ]
    top += _TITLE
    for bar in panel.bars:
        parts += _bar(bar, panel.unit, top + _ROW // 2, scale)
        top += _height(bar)
    return parts


def _height(bar: Bar) -> int:
    return _ROW + _DOTS * bool(bar.dots)


def _bar(bar: Bar, unit: str, middle: int, scale: float) -> list[str]:
    width = bar.length * scale
    fill = _OURS if bar.ours else _OTHERS
    below = middle + _BAR // 2 + _DOTS // 2 + 2
    figure = f"{bar.length:.4g} {escape(unit)}"
    return [
        f'<text x="{_LEFT - 10}" y="{middle + 5}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect x="{_LEFT}" y="{middle - _BAR // 2}" width="{width:.1f}" height="{_BAR}"'
        f' rx="3" fill="{fill}"/>'
        f'<text x="{_LEFT + width + 8:.1f}" y="{middle + 5}">{figure}</text>',
        *(
            f'<circle cx="{_LEFT + dot * scale:.1f}" cy="{below}" r="{_DOT}" fill="{fill}"'
            ' stroke="#222"/>'
            for dot in bar.dots
        ),
    ]
