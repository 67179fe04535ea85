"""Similarity of two runs of r tokens: edit distance, longest shared suffix, ROUGE-L (for latr).

Distance and common subsequence are computed in the bits of whole numbers, a column of the table at
a time (Myers 1999, Hyyrö 2004): r additions of r-bit numbers.
"""

from collections.abc import Sequence


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the fewest insertions, deletions and replacements that turn one into the other."""
    if not a:
        return len(b)
    places = _places(a)
    full = (1 << len(a)) - 1
    last = 1 << (len(a) - 1)
    distance = len(a)
    up, down = full, 0  # rows where the column of the table rises and falls
    for token in b:
        match = places.get(token, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right, left = down | ~(diagonal | up) & full, up & diagonal
        distance += bool(right & last) - bool(left & last)
        right, left = (right << 1) | 1, left << 1
        up, down = (left | ~(diagonal | right)) & full, right & diagonal & full
    return distance


def suffix_score(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the longest end of one that occurs anywhere in the other, over their length."""
    return max(_longest_end(a, b), _longest_end(b, a)) / max(len(a), len(b), 1)


def rouge_l(a: Sequence[int], b: Sequence[int]) -> float:
    """Return F1 of their longest common subsequence."""
    return 2.0 * common_subsequence(a, b) / (len(a) + len(b)) if a or b else 1.0


def common_subsequence(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common subsequence."""
    places, full = _places(a), (1 << len(a)) - 1
    rows = full
    for token in b:
        matched = rows & places.get(token, 0)
        rows = ((rows + matched) | (rows - matched)) & full
    return len(a) - rows.bit_count()


def _places(a: Sequence[int]) -> dict[int, int]:
    """Return, by token, the bits of the places where it occurs."""
    places: dict[int, int] = {}
    for at, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << at
    return places


def _longest_end(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest suffix of a found in b."""
    longest = 0
    for end in range(len(b), 0, -1):
        n = 0
        while n < min(end, len(a)) and b[end - 1 - n] == a[-1 - n]:
            n += 1
        longest = max(longest, n)
    return longest
