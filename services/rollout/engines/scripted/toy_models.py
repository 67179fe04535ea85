"""Scripted models that show the use of a branching method: `toy: NAME` in engine_settings.

reconverging: alternating forks of two kinds. After a digit everything continues as before; after a
    letter nothing is the same again. A node's stretch is `aaaaaa`, a digit, `AAAAAAAAAAAAAAAAA`,
    then a child's letter: 3 such choices, 8 endings, 96 letters. Independent sampling meets few of
    the endings and spends branches on digits; a lookahead of 20 tells the kinds apart (LATR, arXiv
    2510.24302).
one_fork: 19 certain tokens, one of 16 equally likely letters, and 12 more certain tokens. Forking
    where the entropy is high gives different answers (ECHO, arXiv 2602.02150); forking every so
    many tokens gives mostly the same (Li et al. 2025, TreePO).
"""

from collections.abc import Callable, Mapping
from typing import Final

Chain = dict[str, dict[str, float]]

DIGITS: Final = {"0": 0.45, "1": 0.35, "2": 0.20}
CHOICE: Final = (0.56, 0.44)
BEFORE, AFTER, DEPTH = 6, 17, 3
FORK_AT, WAYS, TAIL = 19, "bcdefghijklmnopq", 12


def reconverging(before: int = BEFORE, after: int = AFTER) -> Chain:
    """Return the chain of forks. Node i has the i-th letter and the children 2i + 1 and 2i + 2."""
    chain: Chain = {"": {"a": 1.0}}
    for node in range(2 ** (DEPTH + 1) - 1):
        small = chr(ord("a") + node)
        big = small.upper()
        children = [chr(ord("a") + child) for child in (2 * node + 1, 2 * node + 2)]
        inner = node < 2**DEPTH - 1
        chain |= {small: {small: 1.0}, small * before: dict(DIGITS), big: {big: 1.0}}
        chain |= {small + digit: {big: 1.0} for digit in DIGITS}
        chain[big * after] = dict(zip(children, CHOICE, strict=True)) if inner else {"": 1.0}
    return chain


def one_fork(fork_at: int = FORK_AT, tail: int = TAIL) -> Chain:
    """Return the chain of one fork; each way repeats its letter `tail` times."""
    chain: Chain = {"": {"a": 1.0}, "a" * fork_at: dict.fromkeys(WAYS, 1.0 / len(WAYS))}
    for way in WAYS:
        chain |= {way: {way: 1.0}, way * (tail + 1): {"": 1.0}}
    return chain


TOYS: Mapping[str, Callable[[], Chain]] = {"reconverging": reconverging, "one_fork": one_fork}
