"""What a head's numbers came to: equal-mass bins of what it said, and what was right in each (card 18). Pure numpy."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def points(raw_N: Any, right_N: Any, weight_N: Any, bins: int) -> tuple[Floats, Floats]:
    """The mean of what the head said in each of `bins` bins of equally many, and the weighted share that was right.

    Bins that say the same are one. With fewer numbers than bins there is nothing to go by: the points of p = q.
    """
    raw, right, weight = (np.asarray(values, np.float64) for values in (raw_N, right_N, weight_N))
    if len(raw) < bins:
        return np.linspace(0.0, 1.0, bins), np.linspace(0.0, 1.0, bins)
    parts = np.array_split(np.argsort(raw, kind="stable"), bins)
    raw_B = np.array([raw[part].mean() for part in parts])
    hits_B = np.array([(weight[part] * right[part]).sum() for part in parts])
    mass_B = np.array([weight[part].sum() for part in parts])
    _, same = np.unique(raw_B, return_inverse=True)
    return raw_B, (np.bincount(same, hits_B) / np.bincount(same, mass_B))[same]
