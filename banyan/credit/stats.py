"""Statistics that estimators share: centring, standardising, leave-one-out, medians.

`label_R` gives the peer group of each value as a small integer; without it all values are one
group. A peer group of one value, or without a spread beyond rounding, gives exactly 0.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Rewards are means of scorers' values, so equal ones may differ in their last bits.
EQUAL = 1e-9


def labels_of(*columns: npt.ArrayLike) -> Ints:
    """Return a label for each distinct row of the columns."""
    label_R: Ints | None = None
    for column in columns:
        distinct, fresh_R = np.unique(np.asarray(column, np.int64), return_inverse=True)
        label_R = (
            fresh_R
            if label_R is None
            else np.unique(label_R * len(distinct) + fresh_R, return_inverse=True)[1]
        )
    return np.zeros(0, np.int64) if label_R is None else np.asarray(label_R, np.int64).reshape(-1)


def _whole(value_R: Floats, label_R: Ints | None) -> Ints:
    return np.zeros(len(value_R), np.int64) if label_R is None else label_R


def sizes(label_R: Ints) -> Ints:
    """Return the size of the peer group of each value."""
    return np.asarray(np.bincount(label_R)[label_R]) if len(label_R) else label_R


def means(value_R: Floats, label_R: Ints | None = None) -> Floats:
    """Return the mean of the peers of each value, itself included."""
    label_R = _whole(value_R, label_R)
    if not len(value_R):
        return value_R
    return np.asarray(
        (np.bincount(label_R, value_R) / np.maximum(np.bincount(label_R), 1))[label_R]
    )


def centred(value_R: Floats, label_R: Ints | None = None) -> Floats:
    """Return value − mean of its peers; exactly 0 where these are equal up to rounding.

    Some estimators count the values that are not 0.
    """
    mean_R = means(value_R, label_R)
    apart_R = value_R - mean_R
    return np.where(np.abs(apart_R) > EQUAL * np.maximum(1.0, np.abs(mean_R)), apart_R, 0.0)


def deviations(apart_R: Floats, label_R: Ints | None = None, ddof: int = 1) -> Floats:
    """Return the standard deviation of the peers of centred values; 0 for a peer group of one."""
    label_R = _whole(apart_R, label_R)
    if not len(apart_R):
        return apart_R
    count = np.maximum(np.bincount(label_R) - ddof, 1)
    return np.asarray(np.sqrt(np.bincount(label_R, apart_R**2) / count)[label_R])


def standardised(
    value_R: Floats, label_R: Ints | None = None, *, ddof: int = 1, epsilon: float = 1e-6
) -> Floats:
    """Return (value − mean) / (std + epsilon) among peers; 0 where they do not differ."""
    apart_R = centred(value_R, label_R)
    return np.divide(
        apart_R,
        deviations(apart_R, label_R, ddof) + epsilon,
        out=np.zeros_like(apart_R),
        where=apart_R != 0,
    )


def against_others(value_R: Floats, label_R: Ints | None = None) -> Floats:
    """Return value − mean of the other peers = n / (n − 1) · (value − mean).

    The result is 0 for a peer group of one.
    """
    label_R = _whole(value_R, label_R)
    n_R = sizes(label_R)
    return np.asarray(centred(value_R, label_R) * n_R / np.maximum(n_R - 1, 1))


def lower_median(value_R: Floats) -> float:
    """Return the middle value, or the lower of the two middle ones: always one of the values."""
    return float(np.sort(value_R)[(len(value_R) - 1) // 2])
