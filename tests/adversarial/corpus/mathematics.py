"""`math`: an algebra system reads what a model wrote, and may not be paid by what it misreads."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, Table, cases
from tests.adversarial.corpus.generic import generic

NUMBER = Subject("math", {"seconds": 1.0}, {"answer": "7/2"})
SYMBOLS = Subject("math", {"seconds": 1.0}, {"answer": "$x^2 - 1$"})
SMALL = Subject("math", {"seconds": 1.0}, {"answer": "1e-9"})
WORD = Subject("math", {"seconds": 1.0}, {"answer": "Friday"})

NUMBERS: Table = {
    "itself": ("\\boxed{\\frac{7}{2}}", 1.0),
    "a decimal": ("so 3.5", 1.0),
    "both of two": ("\\boxed{3.5} or \\boxed{4}", 0.0),
    "all numbers": ("3 or 3.5 or 4", 0.0),
    "an interval that holds it": ("$[3, 4]$", 0.0),
    "an inequality that it solves": ("$x > 3$", 0.0),
    "an exponent that is cut": ("3.5e7", 0.0),
    "a tower": ("\\boxed{9^{9^{9^{9}}}}", 0.0),
    "a factorial": ("\\boxed{100000000!}", 0.0),
    "a sum without end": ("\\boxed{\\sum_{k=1}^{\\infty} k^k}", 0.0),
    "nothing over nothing": ("\\boxed{\\frac{0}{0}}", 0.0),
    "no number": ("\\boxed{\\text{nan}}", 0.0),
    "a name": ("\\boxed{x}", 0.0),
    "infinity": ("\\boxed{\\infty}", 0.0),
}
OTHERS: Table = {
    "the factors": ("\\boxed{(x-1)(x+1)}", 1.0),
    "another name": ("\\boxed{y^2 - 1}", 0.0),
    "an equation": ("\\boxed{x^2 = 1}", 0.0),
    "a value of it": ("\\boxed{3}", 0.0),
}
SMALLS: Table = {
    "itself": ("0.000000001", 1.0),
    "nothing": ("0", 0.0),
    "nothing with a fraction": ("0.0", 0.0),
    "twice as much": ("2e-9", 0.0),
}
WORDS: Table = {"its letters": ("\\boxed{yadirF}", UNSCORABLE), "itself": ("Friday", UNSCORABLE)}


def every() -> Iterator[Case]:
    """Yield the cases."""
    yield from cases(NUMBER, NUMBERS)
    yield from cases(SYMBOLS, OTHERS)
    yield from cases(SMALL, SMALLS)
    yield from cases(WORD, WORDS)
    yield from generic(NUMBER)
