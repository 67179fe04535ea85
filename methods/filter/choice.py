"""choice: 1 if the final answer claims the row's option and no other, else 0.

The text is what follows the last </think>, of that the content of the last <answer> tag if it has
one, and of that the last 65,536 characters. Its final answer is what follows the last "answer is",
"answer:" or "answer =" (or "option", "choice") in the line; without such words, the last line that
is not blank.

It claims an option if it is nothing but the option's letter, the letter and then the option's text,
or the text: "B", "(b)", "B)", "**B**", "option B.", "\\boxed{B}", "B) Paris", "Paris". Letters are
read before texts, without regard to capitals. Anything more is no claim: "B or C", "not B", "B?"
and "B, because" earn nothing, nor does a line of more than 4,096 characters.

Lines directly after the final answer belong to it as long as each is a claim, and so do those
directly before it that are of its kind, with such words or without; so a list of all options earns
nothing. Earlier claims, parted from it by other text, are reasoning and do not count.
"""

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from banyan.plugins import Row, Scored, Unscorable, checks
from methods.filter.answers import tagged

_SAYS = re.compile(
    r"\b(?:answer|option|choice)[*_`\"'$]{0,4}[ \t]{0,4}(?:is\b|[:=])[*_:\s]*+", re.IGNORECASE
)
_LEADS = re.compile(  # the words before those, which belong to no claim
    r"(?:\b(?:so|and|thus|hence|therefore|my|the|final|correct|right|best)\b[\s,*]*)+\Z",
    re.IGNORECASE,
)
_LONGEST_LEADS = 48
_LONGEST_LINE = 4096  # characters; a longer one is no claim, and comparing it costs time
_LONGEST_TEXT = 65_536  # characters; looking for the words takes 0.1 us each
_MOST_LINES = 64  # options, and lines of a final answer before and after
_LETTER = re.compile(
    r"[*_`\"'$(\[{\s]*+(?:(?:the|option|choice|answer|letter)\s++){0,2}[*_`\"'$(\[{\s]*+"
    r"([^\W_]++)[*_`\"'$)\]}]*+\s*+(?:[.:,;!](?!\d)|[-\u2013\u2014](?=\s))?[*_`\"'$)\]}]*+",
    re.IGNORECASE,
)
_LATEX = re.compile(r"\\(?:boxed|text|textbf|mathrm)\{")
_WRAPPERS = ("", "*_`\"'$ \t", "*_`\"'$()[]{} \t")  # characters around a text


@dataclass(slots=True)
class Choice:
    """Comparison of the option that a completion claims with a field of the row."""

    answer: str = "answer"
    """Field of the row that names the right option, as a completion would; or, for options in a
    list, its index from 0 as a number."""
    options: str = "options"
    """Field of the row with the options: a list of texts, lettered from A, or a mapping of letters
    or digits to texts. Empty if rows have none: then only a letter from A to Z is a claim."""

    name: str = field(default="choice", init=False)
    version: str = field(default="2", init=False)

    def __post_init__(self) -> None:
        for name in ("answer", "options"):
            checks.like(name, getattr(self, name), "")
        if not self.answer:
            raise ValueError("answer is empty; name the field of the row with the right option")

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; UNSCORABLE if the row's options or its answer cannot be read."""
        given = row.get(self.options) if self.options else [""] * len(string.ascii_lowercase)
        options = _options(given)
        if not options:
            return Unscorable(
                f"EXCEPTION: field {self.options!r} of the row is "
                f"{checks.field_shown(row, self.options)}; give a "
                "list of 1 to 26 texts or a mapping of letters to texts, or set options: '' for "
                "letters alone"
            )
        right = _right(row.get(self.answer), options, isinstance(given, list))
        if right is None:
            return Unscorable(
                f"EXCEPTION: field {self.answer!r} of the row is "
                f"{checks.field_shown(row, self.answer)}; give the letter, the text or, for a "
                f"list, the index of one of its {len(options)} options"
            )
        return Scored(float(claims(completion, options) == {right}))


def claims(completion: str, options: Mapping[str, str]) -> set[str]:
    """Return the letters of the options that the final answer claims; empty if it is no claim.

    options: texts by letter, both as `_options` returns them
    """
    text = completion.rpartition("</think>")[2]
    inside = tagged(text)
    lines = list(_lines((text if inside is None else inside)[-_LONGEST_TEXT:]))
    kind = any(said for said, _ in lines)
    last = max((at for at, (said, _) in enumerate(lines) if said is kind), default=0)
    letters = _claimed((line for _, line in lines[last : last + 1]), options)
    if letters:
        before = takewhile(lambda line: line[0] is kind, reversed(lines[:last]))
        letters |= _claimed((line for _, line in before), options)
        letters |= _claimed((line for _, line in lines[last + 1 :]), options)
    return letters


def _claimed(lines: Iterable[str], options: Mapping[str, str]) -> set[str]:
    """Return the letters that the first lines claim, up to one that claims none."""
    letters = set()
    for line in islice(lines, _MOST_LINES):
        letter = _claim(line, options)
        if letter is None:
            break
        letters.add(letter)
    return letters


def _lines(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the lines of a text, new ones beginning after `_SAYS`, and whether they do."""
    pieces = _SAYS.split(text)
    for number, piece in enumerate(pieces):
        if number < len(pieces) - 1:
            piece = piece[:-_LONGEST_LEADS] + _LEADS.sub("", piece[-_LONGEST_LEADS:])
        first, *others = piece.splitlines() or [""]
        if number or first.strip():
            yield number > 0, first
        yield from ((False, line) for line in others if line.strip())


def _claim(line: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that a line claims; None if it is no claim."""
    if len(line) > _LONGEST_LINE:
        return None
    bare = _LATEX.sub("{", line)
    match = _LETTER.match(bare)
    if match is not None:
        letter, rest = match[1].casefold(), bare[match.end() :]
        if letter in options and (not rest.strip() or options[letter] in _forms(rest)):
            return letter
    for form in (*_forms(line), *_forms(bare)):
        letters = [letter for letter, text in options.items() if text == form != ""]
        if letters:
            return letters[0] if len(letters) == 1 else None
    return None


def _forms(line: str) -> list[str]:
    """Return a line as it is compared with texts: as it is, and without what may surround it."""
    line = line.rstrip(" \t.!")
    return [_plain(line.strip(wrapper)) for wrapper in _WRAPPERS]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .")


def _options(given: Any) -> dict[str, str]:
    """Return the options' texts by letter; empty if they cannot be read."""
    if isinstance(given, list) and len(given) <= len(string.ascii_lowercase):
        given = dict(zip(string.ascii_lowercase, given, strict=False))
    if not isinstance(given, Mapping) or len(given) > _MOST_LINES:
        return {}
    options = {
        letter.casefold(): _plain(text)
        for letter, text in given.items()
        if isinstance(letter, str) and letter.isalnum() and isinstance(text, str)
    }
    return options if len(options) == len(given) else {}


def _right(answer: Any, options: Mapping[str, str], is_list: bool) -> str | None:
    """Return the letter of the row's right option; None if it names none."""
    if isinstance(answer, str):
        return _claim(answer, options)
    if is_list and type(answer) is int and 0 <= answer < len(options):
        return list(options)[answer]
    return None
