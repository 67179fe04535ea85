"""length: 1 for a length between two bounds, falling linearly to 0 beyond them.

Paper: Yu et al. 2025, DAPO, arXiv 2503.14476, section 3.4 (as a penalty, for the upper bound)
Formula: value = max(0, 1 - excess / buffer); excess = max(0, least - n, n - most); a penalty is
    value - 1
Left out: tokens as the unit, which the estimator `dapo` counts

Without a buffer every excess is worth 0. A completion without anything that can be seen earns
nothing. With
`penalty` the value lies in -1..0, to be added to the score of another filter. DAPO's buffer ends at
its longest length, and this one begins at `most`: most + buffer is its L_max.
"""

from dataclasses import dataclass, field

from banyan.plugins import Row, Scored, checks
from methods.filter.seen import seen

_MOST = 2**53  # counts up to here are exact as floats
_UNITS = ("characters", "words")


@dataclass(slots=True)
class Length:
    """Comparison of a completion's length with two bounds. It reads no row."""

    most: int
    """Largest length that has the full value."""
    least: int = 0
    """Smallest length that has the full value."""
    buffer: int = 0
    """Length beyond either bound over which the value falls to its least, linearly."""
    unit: str = "characters"
    """Unit of lengths: characters (code points) or words (parted by white space)."""
    penalty: bool = False
    """True if the value is 0 within the bounds and falls to -1, instead of 1 and 0."""

    name: str = field(default="length", init=False)
    version: str = field(default="3", init=False)

    def __post_init__(self) -> None:
        checks.whole(self, ("most", "least", "buffer"), 0, _MOST)
        checks.like("penalty", self.penalty, False)
        if self.least > self.most:
            raise ValueError(
                f"least must not be above most, got least {self.least} and most {self.most}"
            )
        if self.unit not in _UNITS:
            raise ValueError(f"unit must be {' or '.join(_UNITS)}, got {self.unit!r}")

    def score(self, completion: str, row: Row) -> Scored:
        """Return the value of the completion's length, with the length as a part."""
        length = len(completion if self.unit == "characters" else completion.split())
        excess = max(0, self.least - length, length - self.most)
        value = max(0.0, 1 - excess / self.buffer) if self.buffer else float(not excess)
        if not self.penalty and not seen(completion):
            value = 0.0  # saying nothing would be the cheapest way to a reward
        return Scored(value - self.penalty, {self.unit: float(length)})
