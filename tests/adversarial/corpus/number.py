"""`number` and `steps`: one number, and no other, is worth a point."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, Table, cases
from tests.adversarial.corpus.generic import MB, generic

ROW = {"question": "What is 49 times 126?", "answer": 6174}
ONLY = Subject("number", {}, ROW)
LAST = Subject("number", {"take": "last"}, ROW)
LOOSE = Subject("number", {"tolerance": 0.5}, ROW)
STEPS = Subject("steps", {}, {**ROW, "solution": ["49 * 126 = 6174"]})

BOTH: Table = {
    "the number": ("6174", 1.0),
    "the number with a thousand's comma": ("6,174", 1.0),
    "the number with a fraction of nothing": ("6174.000", 1.0),
    "the number in a sentence": ("It is 6174.", 1.0),
    "the number behind a mark": ("\u200f6174", 1.0),
    "the negative number": ("-6174", 0.0),
    "the negative number with a true minus": ("\u22126174", 0.0),
    "the negative number with a full-width minus": ("\uff0d6174", 0.0),
    "the negative number with a small minus": ("\ufe636174", 0.0),
    "the number as a fraction": (".6174", 0.0),
    "the number as a negative fraction": ("-.6174", 0.0),
    "the number with an exponent": ("6174e3", 0.0),
    "the number in two parts": ("61\u200b74", 0.0),
    "the number over lines": ("61\n74", 0.0),
    "the number with zeros inside": ("60174", 0.0),
    "the number with a NUL inside": ("61\x0074", 0.0),
    "the number in the midst of digits": ("1" * 500 + "6174" + "1" * 500, 0.0),
    "the number in other digits": ("\u0666174", 0.0),
    "thousands in the wrong place": ("61,74", 0.0),
    "a number near by": ("6174.0000001", 0.0),
    "a number beside a megabyte": ("x" * MB + "6173", 0.0),
    "the right number beside a megabyte": ("x" * MB + " 6174", 1.0),
}
MANY: Table = {
    "the question again": ("What is 49 times 126?", 0.0),
    "several numbers": ("6173, 6174, 6175", 0.0),
    "several numbers, the right one last": ("6172 6173 6174", 0.0),
    "the right number twice": ("6174 6174", 0.0),
    "all numbers": (" ".join(map(str, range(10_000))), 0.0),
    "the right one and then another": ("6174, or 1", 0.0),
}


def every() -> Iterator[Case]:
    """Yield the cases of both scorers."""
    for subject in (ONLY, LAST, STEPS):
        yield from generic(subject)
        yield from cases(subject, BOTH)
    yield from cases(ONLY, MANY)
    right = {"several numbers, the right one last", "the right number twice"}
    last: Table = {k: (text, float(k in right)) for k, (text, _) in MANY.items()}
    yield from cases(LAST, last)
    yield from cases(STEPS, last)
    yield from cases(LOOSE, {"within": ("6173.5", 1.0), "without": ("6173.49", 0.0)})
    for label, answer in {"none": None, "true": True, "nan": "nan", "a list": [6174]}.items():
        subject = Subject("number", {}, {"question": "", "answer": answer})
        table: Table = {
            f"{label} in the row, as said": (str(answer), UNSCORABLE),
            f"{label} in the row": ("1", UNSCORABLE),
        }
        yield from cases(subject, table)
