"""The few things that recur: centred and standardised by label, leave-one-out, medians. Pure numpy, no loops.

`label_R` says which peer group each value belongs to, as small integers; all values are one group without it. A peer group
of one, or without a spread beyond rounding, gives exactly 0.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Rewards are means of scorers' values: equal ones may differ in their last bits.
EQUAL = 1e-9


def labels_of(*columns: npt.ArrayLike) -> Ints:
    """A label for each distinct row of the columns."""
    label_R: Ints | None = None
    for column in columns:
        found, fresh_R = np.unique(np.asarray(column, np.int64), return_inverse=True)
        label_R = (
            fresh_R
            if label_R is None
            else np.unique(label_R * len(found) + fresh_R, return_inverse=True)[1]
        )
    return np.zeros(0, np.int64) if label_R is None else np.asarray(label_R, np.int64).reshape(-1)


def _whole(value_R: Floats, label_R: Ints | None) -> Ints:
    return np.zeros(len(value_R), np.int64) if label_R is None else label_R


def sizes(label_R: Ints) -> Ints:
    """How many share each value's label."""
    return np.asarray(np.bincount(label_R)[label_R]) if len(label_R) else label_R


def means(value_R: Floats, label_R: Ints | None = None) -> Floats:
    """Mean of the peers of each value, itself included."""
    label_R = _whole(value_R, label_R)
    if not len(value_R):
        return value_R
    return np.asarray(
        (np.bincount(label_R, value_R) / np.maximum(np.bincount(label_R), 1))[label_R]
    )


def centred(value_R: Floats, label_R: Ints | None = None) -> Floats:
    """value − mean of its peers; exactly 0 where they are equal up to rounding: some estimators count what is not."""
    mean_R = means(value_R, label_R)
    apart_R = value_R - mean_R
    return np.where(np.abs(apart_R) > EQUAL * np.maximum(1.0, np.abs(mean_R)), apart_R, 0.0)


def deviations(apart_R: Floats, label_R: Ints | None = None, ddof: int = 1) -> Floats:
    """Standard deviation of the peers of each value, from values that are centred; 0 where there is one."""
    label_R = _whole(apart_R, label_R)
    if not len(apart_R):
        return apart_R
    count = np.maximum(np.bincount(label_R) - ddof, 1)
    return np.asarray(np.sqrt(np.bincount(label_R, apart_R**2) / count)[label_R])


def standardised(
    value_R: Floats, label_R: Ints | None = None, *, ddof: int = 1, epsilon: float = 1e-6
) -> Floats:
    """(value − mean) / (std + epsilon) among peers; 0 where they do not differ."""
    apart_R = centred(value_R, label_R)
    return np.divide(
        apart_R,
        deviations(apart_R, label_R, ddof) + epsilon,
        out=np.zeros_like(apart_R),
        where=apart_R != 0,
    )


def against_others(value_R: Floats, label_R: Ints | None = None) -> Floats:
    """value − mean of its peers without itself = n / (n − 1) · (value − mean); 0 for a peer group of one."""
    label_R = _whole(value_R, label_R)
    n_R = sizes(label_R)
    return np.asarray(centred(value_R, label_R) * n_R / np.maximum(n_R - 1, 1))


def lower_median(value_R: Floats) -> float:
    """The middle value; of an even number, the lower one of the two: always one of the values."""
    return float(np.sort(value_R)[(len(value_R) - 1) // 2])
