"""`choice`: one option claimed, and no other, is worth a point."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, Table, cases
from tests.adversarial.corpus.generic import MB, generic

OPTIONS = ["Paris", "Rome", "Oslo", "Bern"]
ROW = {"question": "What is the capital of Italy?", "options": OPTIONS, "answer": "B"}
CHOICE = Subject("choice", {}, ROW)
LETTERS = Subject("choice", {"options": ""}, {"question": "?", "answer": "B"})

TABLE: Table = {
    "the letter": ("B", 1.0),
    "the letter of a final answer": ("It is in Italy. The answer is (B).", 1.0),
    "the text": ("Rome", 1.0),
    "letter and text": ("B) Rome", 1.0),
    "letter and another text": ("B) Paris", 0.0),
    "another letter and the text": ("A) Rome", 0.0),
    "the question again": ("What is the capital of Italy?\nA) Paris\nB) Rome\nC) Oslo", 0.0),
    "all letters": ("A B C D", 0.0),
    "all letters with commas": ("A, B, C, D", 0.0),
    "all letters on lines": ("A\nB\nC\nD", 0.0),
    "all letters on lines, the right one last": ("A\nC\nD\nB", 0.0),
    "all letters as answers": ("Answer: A\nAnswer: C\nAnswer: D\nAnswer: B", 0.0),
    "all letters as answers in a line": ("answer: A answer: C answer: D answer: B", 0.0),
    "all texts": ("Paris Rome Oslo Bern", 0.0),
    "all letters in tags": ("<answer>A</answer>\n<answer>B\nA</answer>", 0.0),
    "all letters as one word": ("ABCD", 0.0),
    "a choice of two": ("B or C", 0.0),
    "one of two": ("either B", 0.0),
    "a negation": ("not B", 0.0),
    "a question": ("B?", 0.0),
    "the letter with a zero-width space": ("B\u200b", 0.0),
    "the letter with a mark": ("\u200fB", 0.0),
    "the letter of another alphabet": ("\u0412", 0.0),
    "a full-width letter": ("\uff22", 0.0),
    "a letter in a circle": ("\u24b7", 0.0),
    "the letter with a NUL": ("B\0", 0.0),
    "the letter with an accent": ("B\u0301", 0.0),
    "the index": ("1", 0.0),
    "the letter behind a megabyte": ("x" * MB + "\nB", 1.0),
    "the letter before a megabyte": ("B\n" + "x" * MB, 0.0),
    "the letter behind a megabyte of blanks": (" " * MB + "B", 0.0),
    "a megabyte of the letter": ("B" * MB, 0.0),
    "a megabyte of letters on lines": ("B\n" * (MB // 2) + "A", 0.0),
    "a megabyte of answers": ("answer: A " * (MB // 10), 0.0),
    "the letter in a thought": ("<think>The answer is B</think>", 0.0),
    "the letter before the thought's end": ("B</think>", 0.0),
    "the letter behind thoughts": ("<think>A</think>" * 1000 + "B", 1.0),
    "a tag in a tag": ("<answer>A<answer>B</answer></answer>", 0.0),
}


def every() -> Iterator[Case]:
    """Yield the cases of the scorer."""
    yield from generic(CHOICE)
    yield from generic(LETTERS)
    yield from cases(CHOICE, TABLE)
    for label, row in {
        "no options": {"answer": "B"},
        "an answer that is no option": {**ROW, "answer": "Z"},
        "two options of one text": {**ROW, "options": ["x", "x"], "answer": "x"},
        "an index of true": {**ROW, "answer": True},
    }.items():
        yield from cases(Subject("choice", {}, row), {label: ("B", UNSCORABLE)})
