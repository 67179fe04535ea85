"""`majority` and `vote`: agreement is worth a point, silence and what nobody sees are no answers.

`head-vote` has no votes here, where no head is heard, so that nothing earns anything.
"""

from collections.abc import Iterator

from tests.adversarial.corpus.case import Case, Subject, Table, cases
from tests.adversarial.corpus.generic import generic

ROW = {"question": "?"}
NUMBERS = Subject("majority", {}, ROW, ("6174", "6174.0"))
TAGS = Subject("majority", {"extract": "tag"}, ROW, ("<answer>x y</answer>",) * 2)
TEXTS = Subject("majority", {"extract": "text"}, ROW, ("the answer",) * 2)
VOTES = Subject("vote", {}, ROW, ("6174", "6174.0"))
UNHEARD = Subject("head-vote", {}, ROW, ("6174", "6174.0"))
UNSEEN = ("", " ", "\0", "\u200b", "\ufe0f", "\u2800", "\u3164", "\u200f \u200b")


def every() -> Iterator[Case]:
    """Yield the cases of the scorer."""
    yield from generic(NUMBERS)
    yield from generic(TAGS)
    yield from generic(TEXTS)
    yield from cases(NUMBERS, {"the label": ("It is 6,174.", 1.0), "two": ("6174 6174", 0.0)})
    yield from generic(VOTES)
    yield from generic(UNHEARD)
    yield from cases(VOTES, {"the winner": ("It is 6,174.", 1.0), "two": ("6174 6174", 0.0)})
    yield from cases(UNHEARD, {"unheard": ("6174", 0.0)})
    for text in UNSEEN:
        label = f"all of {text!r}"
        table: Table = {label: (text, 0.0)}
        yield from cases(Subject("majority", {"extract": "text"}, ROW, (text,) * 2), table)
        tagged = f"<answer>{text}</answer>"
        table = {label: (tagged, 0.0)}
        yield from cases(Subject("majority", {"extract": "tag"}, ROW, (tagged,) * 2), table)
