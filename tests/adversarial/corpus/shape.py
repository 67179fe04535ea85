"""`format` and `length`, which pay for a shape: text that nobody sees has none."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import Case, Subject, Table, cases
from tests.adversarial.corpus.generic import DEEP, MB, generic

FORMAT = Subject("format", {}, {"question": "?"})
PARTIAL = Subject("format", {"partial": True}, {"question": "?"})
LENGTH = Subject("length", {"least": 38, "most": 60}, {"question": "?"})
WORDS = Subject("length", {"least": 5, "most": 9, "unit": "words"}, {"question": "?"})
PENALTY = Subject("length", {"most": 10, "buffer": 10, "penalty": True}, {"question": "?"})


def _shaped(thought: str, answer: str) -> str:
    return f"<think>{thought}</think>\n<answer>{answer}</answer>"


WHOLE = _shaped("a", "b")
TAGS: Table = {
    "the shape": (WHOLE, 1.0),
    "the shape twice": (WHOLE + WHOLE, 0.0),
    "text before it": ("x" + WHOLE, 0.0),
    "text behind it": (WHOLE + "x", 0.0),
    "a NUL behind it": (WHOLE + "\0", 0.0),
    "a zero-width space behind it": (WHOLE + "\u200b", 0.0),
    "the other order": ("<answer>b</answer><think>a</think>", 0.0),
    "one in the other": ("<think>a<answer>b</answer></think>", 0.0),
    "crossed": ("<think>a<answer>b</think></answer>", 0.0),
    "unclosed": ("<think>a</think><answer>b", 0.0),
    "never opened": ("a</think><answer>b</answer>", 0.0),
    "repeated": ("<think>a</think><think>a</think><answer>b</answer>", 0.0),
    "a tag in a tag of its kind": ("<think><think>a</think></think><answer>b</answer>", 0.0),
    "capitals": ("<THINK>a</THINK><ANSWER>b</ANSWER>", 0.0),
    "blanks in the tags": ("< think >a</ think >< answer >b</ answer >", 0.0),
    "attributes": ('<think a="b">a</think><answer a="b">b</answer>', 0.0),
    "self-closing": ("<think/><answer/>", 0.0),
    "full-width tags": ("\uff1cthink\uff1ea\uff1c/think\uff1e", 0.0),
    "escaped tags": ("&lt;think&gt;a&lt;/think&gt;", 0.0),
    "empty tags": (_shaped("", ""), 0.0),
    "tags of blanks": (_shaped(" \n", "\t"), 0.0),
    "tags of NULs": (_shaped("\0", "\0"), 0.0),
    "tags of zero-width spaces": (_shaped("\u200b", "\u200b"), 0.0),
    "tags of soft hyphens": (_shaped("\xad", "\xad"), 0.0),
    "tags of variation selectors": (_shaped("\ufe0f", "\ufe0f"), 0.0),
    "tags of joiners": (_shaped("\u034f", "\u034f"), 0.0),
    "tags of blanks of Braille": (_shaped("\u2800", "\u2800"), 0.0),
    "tags of Hangul fillers": (_shaped("\u3164", "\u115f"), 0.0),
    "tags of lone surrogates": (_shaped("\ud800", "\udfff"), 0.0),
    "tags of accents": (_shaped("\u0301", "\u0301"), 0.0),
    "a megabyte in the tags": (_shaped("x" * MB, "y" * MB), 1.0),
    "a megabyte of tags": ("<think>a</think>" * (MB // 16), 0.0),
    "opened many times": ("<think>" * DEEP + "a</think><answer>b</answer>", 0.0),
}
HALF = {
    # of (two tags + shape) / 3
    "text before it": 2 / 3,
    "text behind it": 2 / 3,
    "a NUL behind it": 2 / 3,
    "a zero-width space behind it": 2 / 3,
    "the other order": 2 / 3,
    "one in the other": 2 / 3,
    "crossed": 2 / 3,
    "unclosed": 1 / 3,
    "never opened": 1 / 3,
    "repeated": 1 / 3,
    "a tag in a tag of its kind": 1 / 3,
    "opened many times": 1 / 3,
}
UNSEEN: Table = {
    "forty letters": ("x" * 40, 1.0),
    "forty blanks": (" " * 40, 0.0),
    "forty NULs": ("\0" * 40, 0.0),
    "forty zero-width spaces": ("\u200b" * 40, 0.0),
    "forty accents": ("\u0301" * 40, 0.0),
    "blanks and marks": (" \u200f" * 20, 0.0),
    "a megabyte": ("x" * MB, 0.0),
}
GENERIC_LENGTHS = {  # these do have such a length, and can be seen
    "a way to all classes": 1.0,
    "a claim of a reward": 1.0,
}


def every() -> Iterator[Case]:
    """Yield the cases of both scorers."""
    yield from generic(FORMAT)
    yield from generic(
        PARTIAL,
        {"an answer in an answer": 0.0, "an answer that never ends": 0.0},
    )
    yield from cases(FORMAT, TAGS)
    partial: Table = {
        label: (text, value if value else HALF.get(label, 0.0))
        for label, (text, value) in TAGS.items()
    }
    yield from cases(PARTIAL, partial)
    yield from cases(LENGTH, UNSEEN)
    yield from cases(
        WORDS,
        {
            "words": ("a b c d e", 1.0),
            "words of marks": ("\u200b " * 5, 0.0),
            "too many words": ("a " * 10, 0.0),
            "one word of a megabyte": ("x" * MB, 0.0),
        },
    )
    yield from cases(
        PENALTY,
        {
            "nothing": ("", 0.0),
            "half beyond": ("x" * 15, -0.5),
            "a megabyte": ("x" * MB, -1.0),
        },
    )
    yield from generic(LENGTH, GENERIC_LENGTHS)
