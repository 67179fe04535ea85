"""Functions of a user, whose own failures leave no score (tests/verifier/rewards.py)."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, cases
from tests.adversarial.corpus.generic import generic

ROW = {"question": "?", "answer": "6174"}
EXACT = Subject("tests.verifier.rewards:exact", {}, ROW)
OWNERS = (
    *("raises", "half", "unsayable", "leaves", "nan", "text", "huge"),
    *("forged_nan", "forged_infinity", "forged_list", "many_parts"),
)


def every() -> Iterator[Case]:
    """Yield the cases of functions."""
    yield from generic(EXACT)
    yield from cases(EXACT, {"the answer": ("6174", 1.0)})
    for name in OWNERS:
        subject = Subject(f"tests.verifier.rewards:{name}", {}, ROW)
        yield Case(subject, name, "x", UNSCORABLE)
