"""What a step of ets says, as numbers: how often each three characters in a row occur in it (card 37; there a model does).

This is no meaning: steps are alike if they are written alike. It needs no model, and equal texts are always one cluster.
Letters count as small ones, runs of blanks as one. With the cut of 0.05, steps are one cluster if a few characters differ.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CHARACTERS = 3


def embeddings(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """A row for each text, a column for each run of characters that occurs in any."""
    counted = [_counts(text) for text in texts]
    columns = {
        piece: at
        for at, piece in enumerate(sorted({piece for counts in counted for piece in counts}))
    }
    found = np.zeros((len(texts), len(columns)))
    for row, counts in zip(found, counted, strict=True):
        for piece, count in counts.items():
            row[columns[piece]] = count
    return found


def _counts(text: str) -> Counter[str]:
    plain = f" {' '.join(text.lower().split())} "
    return Counter(
        plain[at : at + _CHARACTERS] for at in range(max(1, len(plain) - _CHARACTERS + 1))
    )
