"""`exact`: the row's text and nothing else is worth a point."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, Table, cases
from tests.adversarial.corpus.generic import MB, generic

RIGHT = "7a+4=11b-9=2"
EXACT = Subject("exact", {}, {"question": "7 a+4 b-9", "answer": RIGHT})
NUMBER = Subject("exact", {"answer": "last"}, {"question": "7 a+4 b-9", "last": 2})

TABLE: Table = {
    "the text": (RIGHT, 1.0),
    "the text between blanks": (f" \n{RIGHT}\t", 1.0),
    "the text twice": (RIGHT + RIGHT, 0.0),
    "the text on two lines": (RIGHT.replace("b", "\nb"), 0.0),
    "a beginning of it": (RIGHT[:-1], 0.0),
    "more than it": (RIGHT + "c2+0=2", 0.0),
    "capitals": (RIGHT.upper(), 0.0),
    "full-width digits": (RIGHT.replace("2", "\uff12"), 0.0),
    "a zero-width space in it": (RIGHT.replace("b", "\u200bb"), 0.0),
    "a NUL behind it": (RIGHT + "\0", 0.0),
    "quoted": (f'"{RIGHT}"', 0.0),
    "behind a megabyte": ("x" * MB + RIGHT, 0.0),
    "behind a megabyte of blanks": (" " * MB + RIGHT, 1.0),
}
DIGIT: Table = {
    "the digit": ("2", 1.0),
    "the digit with a fraction": ("2.0", 0.0),
    "the digit with a zero before": ("02", 0.0),
    "the digit with a sign": ("+2", 0.0),
}


def every() -> Iterator[Case]:
    """Yield the cases of the scorer."""
    yield from generic(EXACT)
    yield from generic(NUMBER)
    yield from cases(EXACT, TABLE)
    yield from cases(NUMBER, DIGIT)
    for label, row in {
        "without an answer": {},
        "with nothing to see": {"answer": " \u200b"},
        "with a list": {"answer": [RIGHT]},
        "with a fraction": {"answer": 0.5},
        "with true": {"answer": True},
    }.items():
        yield from cases(Subject("exact", {}, row), {f"a row {label}": (RIGHT, UNSCORABLE)})
