"""Embeddings of ets's steps without a model: counts of each run of three characters.

The paper uses a model. Here steps are alike if they are written alike; equal texts are always one
cluster. Letters are lower-cased, runs of blanks become one. With the cut of 0.05, steps are one
cluster if a few characters differ.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CHARACTERS = 3


def embeddings(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return a row for each text, with a column for each run of characters that occurs in any."""
    counted = [_counts(text) for text in texts]
    columns = {
        piece: at
        for at, piece in enumerate(sorted({piece for counts in counted for piece in counts}))
    }
    counts_N_D = np.zeros((len(texts), len(columns)))
    for row, counts in zip(counts_N_D, counted, strict=True):
        for piece, count in counts.items():
            row[columns[piece]] = count
    return counts_N_D


def _counts(text: str) -> Counter[str]:
    plain = f" {' '.join(text.lower().split())} "
    return Counter(
        plain[at : at + _CHARACTERS] for at in range(max(1, len(plain) - _CHARACTERS + 1))
    )
