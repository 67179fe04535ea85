"""Whitening over a batch: (x − mean) / sqrt(var + 1e-8) over all trained path tokens.

The variance is unbiased. A value that holds for many tokens counts that often (REINFORCE++, Hu
2025, arXiv 2501.03262).
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_TINY = 1e-8


def whiten(values: Floats, tokens: Floats) -> Floats:
    """Return values whose mean over tokens is 0 and whose variance is 1; nan stays nan."""
    counted = np.isfinite(values) & (tokens > 0)
    x = values[counted]
    weight = tokens[counted]
    total = float(weight.sum())
    if total < 2:
        return np.where(np.isfinite(values), 0.0, np.nan)
    mean = float((weight * x).sum()) / total
    variance = float((weight * (x - mean) ** 2).sum()) / (total - 1)
    return np.asarray((values - mean) / np.sqrt(variance + _TINY))
