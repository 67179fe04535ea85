"""format: 1 if the completion has the wanted tags in their order, each exactly once, else 0.

Formula: value = 1 if the shape holds; with `partial`, (whole tags + shape) / (tags + 1)

A tag is whole if it is opened once, closed once after that, and holds text that can be seen (the
rule: methods/filter/seen.py). The shape holds if all tags are whole, one ends before the next
begins, and with `strict` only white space stands outside of them. Tags are compared exactly,
capitals included; other tags are text like any other. So a partial score is 1 for the shape alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from banyan.plugins import Row, Scored, checks
from methods.filter.seen import seen

_MOST_TAGS = 32  # each has a part of its score
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(slots=True)
class Format:
    """Comparison of a completion's tags with a list of them. It reads no row."""

    tags: Sequence[str] = ("think", "answer")
    """Names of the tags in their order, such as `think` for <think>...</think>."""
    strict: bool = True
    """True if only white space may stand outside the tags."""
    partial: bool = False
    """Score the share of what is right. Without it anything but the whole shape is 0."""
    opened: bool = False
    """True if the prompt ends with the opening of the first tag, as some chat templates do."""

    name: str = field(default="format", init=False)
    version: str = field(default="2", init=False)

    def __post_init__(self) -> None:
        for name in ("strict", "partial", "opened"):
            checks.like(name, getattr(self, name), False)
        if not isinstance(self.tags, list | tuple) or not 1 <= len(self.tags) <= _MOST_TAGS:
            raise ValueError(
                f"tags must be a list of 1 to {_MOST_TAGS} names, got {checks.shown(self.tags)}"
            )
        for tag in self.tags:
            if not isinstance(tag, str) or not _NAME.fullmatch(tag):
                raise ValueError(
                    f"tags has {checks.shown(tag)}; give a name of 1 to 32 letters, digits, - and "
                    "_, without < and >"
                )
        if len(set(self.tags)) < len(self.tags):
            raise ValueError(f"tags must name each tag once, got {checks.shown(self.tags)}")

    def score(self, completion: str, row: Row) -> Scored:
        """Return 1 or 0, or the share, with a part for each tag and one for the shape."""
        text = f"<{self.tags[0]}>{completion}" if self.opened else completion
        opened, closed = self._marks(text)
        spans = {tag: _span(opened[tag], closed[tag]) for tag in self.tags}
        whole = [span is not None and seen(text[slice(*span)]) for span in spans.values()]
        shape = all(whole) and self._holds(text, [span for span in spans.values() if span])
        value = (sum(whole) + shape) / (len(whole) + 1) if self.partial else float(shape)
        parts = {f"tag_{tag}": float(right) for tag, right in zip(self.tags, whole, strict=True)}
        return Scored(value, parts | {"shape": float(shape)})

    def _marks(self, text: str) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Return by tag where its openings end, and where its closings begin."""
        opened: dict[str, list[int]] = {tag: [] for tag in self.tags}
        closed: dict[str, list[int]] = {tag: [] for tag in self.tags}
        for mark in re.finditer(f"<(/?)({'|'.join(self.tags)})>", text):
            if mark[1]:
                closed[mark[2]].append(mark.start())
            else:
                opened[mark[2]].append(mark.end())
        return opened, closed

    def _holds(self, text: str, spans: Sequence[tuple[int, int]]) -> bool:
        """Return whether whole tags stand in their order, and alone if that is wanted."""
        at = 0
        for tag, (start, end) in zip(self.tags, spans, strict=True):
            begin = start - len(f"<{tag}>")
            if begin < at or (self.strict and text[at:begin].strip()):
                return False
            at = end + len(f"</{tag}>")
        return not (self.strict and text[at:].strip())


def _span(opened: Sequence[int], closed: Sequence[int]) -> tuple[int, int] | None:
    """Return the span of a tag's content; None unless it is opened once, then closed once."""
    if len(opened) != 1 or len(closed) != 1 or closed[0] < opened[0]:
        return None
    return opened[0], closed[0]
