"""A tree as an SVG picture: boxes of text, coloured by credit.

The prompt stands at the left, its continuations at the right. Ends have equally spaced rows, and a
box with children has their mean height: so two boxes of a column, whose ends are in rows of their
own, never meet. Texts are a model's: control characters are shown, and markup is text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len

from banyan.errors import InvalidInput
from banyan.text.printable import printable

MOST_LEAVES = 256
LONGEST = 28  # last characters of a text that a box shows
_ROW, _HEIGHT, _GAP, _MARGIN, _PAD = 46.0, 36.0, 48.0, 16.0, 8.0
_CELL, _SMALL = 7.8, 6.0  # widths of a character of text and of a figure, whose sizes are 13 and 10
_NARROWEST, _LEGEND = 500.0, 52.0  # the legend's width and height
_WHITE, _GREEN, _RED = (255, 255, 255), (64, 181, 104), (240, 104, 92)
_GREY, _PROMPT = "#e9ecef", "#ffffff"
_UNKNOWN = "�"
_SHOWN = str.maketrans({"\n": "⏎", "\t": "⇥", "\ufffe": _UNKNOWN, "\uffff": _UNKNOWN})
_MEANING = "V: mean reward of the leaves below. A: advantage. Wider lines: more paths."


@dataclass(frozen=True, kw_only=True)
class Line:
    """Box of the picture.

    parent: index of the line that it continues, which comes before it; -1 for the prompt, the first
    value: mean reward of the scored leaves at or below it; None without any
    reward: reward of the leaf that ends here, nan if it is unscorable; None if no leaf ends here
    advantage: its credit; None if it has none
    """

    text: str
    parent: int
    value: float | None = None
    reward: float | None = None
    advantage: float | None = None


@dataclass(frozen=True)
class _Box:
    line: Line
    x: float
    y: float  # of its middle
    width: float
    paths: int


def drawn(lines: Sequence[Line], title: str) -> str:
    """Return the SVG text of a tree.

    Raises InvalidInput for more than MOST_LEAVES leaves.
    """
    boxes = _placed(lines)
    strongest = max((abs(_credit(line)) for line in lines), default=0.0)
    right = max(box.x + box.width for box in boxes)
    width = max(right + _MARGIN, _NARROWEST)
    bottom = max(box.y for box in boxes) + _ROW / 2 + _MARGIN / 2
    height = bottom + _LEGEND
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" xml:space="preserve"'
        " font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\">",
        f"<title>{_safe(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
        *(_curve(boxes[box.line.parent], box) for box in boxes if box.line.parent >= 0),
        *(_shown(box, strongest) for box in boxes),
        *_legend(bottom, strongest),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _placed(lines: Sequence[Line]) -> list[_Box]:
    """Return the boxes of all lines, in their order."""
    children: list[list[int]] = [[] for _ in lines]
    columns: list[int] = []
    for index, line in enumerate(lines):
        columns.append(columns[line.parent] + 1 if line.parent >= 0 else 0)
        if line.parent >= 0:
            children[line.parent].append(index)
    paths = [int(line.reward is not None or not children[i]) for i, line in enumerate(lines)]
    for index in reversed(range(1, len(lines))):
        paths[lines[index].parent] += paths[index]
    if paths[0] > MOST_LEAVES:
        raise InvalidInput(
            f"the tree has {paths[0]:,} leaves, and a picture has at most {MOST_LEAVES}; print it"
            " with `banyan trees show`"
        )
    widths = [0.0] * (max(columns) + 1)
    for line, column in zip(lines, columns, strict=True):
        widths[column] = max(widths[column], _width(line))
    lefts = [_MARGIN + sum(widths[:column]) + _GAP * column for column in range(len(widths))]
    heights = _heights(children)
    return [
        _Box(line, lefts[column], heights[index], widths[column], paths[index])
        for index, (line, column) in enumerate(zip(lines, columns, strict=True))
    ]


def _heights(children: Sequence[Sequence[int]]) -> list[float]:
    """Return the height of each box's middle: a row for each end, and the mean of children."""
    heights = [0.0] * len(children)
    row, stack = 0, [0]
    while stack:
        index = stack.pop()
        stack.extend(reversed(children[index]))
        if not children[index]:
            heights[index] = _MARGIN + _ROW * (row + 0.5)
            row += 1
    for index in reversed(range(len(children))):
        if below := [heights[child] for child in children[index]]:
            heights[index] = sum(below) / len(below)
    return heights


def _width(line: Line) -> float:
    text = _length(_label(line.text))
    return max(text, len(_figures(line)) * _SMALL) + 2 * _PAD


def _length(label: str) -> float:
    """Return the length of a box's text; at least a character, if all are marks on others."""
    return max(1, cell_len(label)) * _CELL


def _label(text: str) -> str:
    """Return the end of a text as one line: a prompt asks at its end."""
    text = printable(text).translate(_SHOWN)
    if not text:
        return "∅"
    return text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"


def _safe(text: str) -> str:
    return escape(printable(text).translate(_SHOWN))


def _figures(line: Line) -> str:
    figures = []
    if line.reward is not None:
        figures.append("unscorable" if math.isnan(line.reward) else f"reward {line.reward:.4g}")
    elif line.value is not None:
        figures.append(f"V {line.value:.3g}")
    if line.advantage is not None:
        figures.append(f"A {line.advantage:+.3f}")
    return "  ".join(figures).replace("-", "−")


def _credit(line: Line) -> float:
    """Return a line's advantage as it is coloured: 0 where it is none, or its figure would be."""
    advantage = line.advantage
    return round(advantage, 6) if advantage is not None and math.isfinite(advantage) else 0.0


def _fill(credit: float, strongest: float) -> str:
    if not credit:
        return _GREY
    strength = 0.15 + 0.85 * abs(credit) / strongest
    end = _GREEN if credit > 0 else _RED
    mixed = (round(a + (b - a) * strength) for a, b in zip(_WHITE, end, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _curve(above: _Box, box: _Box) -> str:
    start = above.x + above.width
    middle = (start + box.x) / 2
    bend = f"C{middle:.1f} {above.y:.1f} {middle:.1f} {box.y:.1f} {box.x:.1f} {box.y:.1f}"
    width = 1.5 + math.log2(box.paths)
    return (
        f'<path d="M{start:.1f} {above.y:.1f} {bend}" fill="none" stroke="#b4bcc4"'
        f' stroke-width="{width:.1f}"/>'
    )


def _shown(box: _Box, strongest: float) -> str:
    label, figures = _label(box.line.text), _figures(box.line)
    fill = _fill(_credit(box.line), strongest) if box.line.parent >= 0 else _PROMPT
    left = box.x + _PAD
    return (
        f'<rect class="node" x="{box.x:.1f}" y="{box.y - _HEIGHT / 2:.1f}" width="{box.width:.1f}"'
        f' height="{_HEIGHT:g}" rx="6" fill="{fill}" stroke="#6c757d"/>'
        f'<text x="{left:.1f}" y="{box.y - 2:.1f}" font-size="13" fill="#000"'
        f' textLength="{_length(label):.1f}">{escape(label)}</text>'
        f'<text x="{left:.1f}" y="{box.y + 12:.1f}" font-size="10" fill="#333">{figures}</text>'
    )


def _legend(top: float, strongest: float) -> list[str]:
    words = [(-strongest, "A below 0"), (0.0, "A = 0"), (strongest, "A above 0")]
    parts = []
    for number, (credit, meaning) in enumerate(words):
        x = _MARGIN + 100 * number
        parts.append(
            f'<rect class="legend" x="{x:g}" y="{top + 6:.1f}" width="12" height="12" rx="3"'
            f' fill="{_fill(credit, strongest)}" stroke="#6c757d"/>'
            f'<text x="{x + 18:g}" y="{top + 16:.1f}" font-size="11" fill="#333">{meaning}</text>'
        )
    about = f"strongest: |A| = {strongest:.3f}" if strongest else "no branch has credit"
    parts.append(
        f'<text x="{_MARGIN + 300:g}" y="{top + 16:.1f}" font-size="11" fill="#333">{about}</text>'
        f'<text x="{_MARGIN:g}" y="{top + 36:.1f}" font-size="11" fill="#333">{_MEANING}</text>'
    )
    return parts
