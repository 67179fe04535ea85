"""Scripted models that show what a way to branch is good for. `toy: NAME` in engine_settings.

reconverging: forks of two kinds in turn. Behind a digit all goes on as before; behind a letter nothing is the same again.
    A node's stretch is `aaaaaa`, a digit, `AAAAAAAAAAAAAAAAA`, then a child's letter: 3 such choices, 8 endings, 96 letters.
    Sampling independently meets few of the endings and pays for digits; a lookahead of 20 tells the kinds apart (card 7).
one_fork: 19 tokens that are certain, one of 16 letters that are equally likely, and 12 more that are certain: who forks
    where the entropy is gets different answers, who forks every so many tokens mostly the same (cards 1 and 2).
"""

from collections.abc import Callable, Mapping
from typing import Final

Chain = dict[str, dict[str, float]]

DIGITS: Final = {"0": 0.45, "1": 0.35, "2": 0.20}
CHOICE: Final = (0.56, 0.44)
BEFORE, AFTER, DEPTH = 6, 17, 3
FORK_AT, WAYS, TAIL = 19, "bcdefghijklmnopq", 12


def reconverging(before: int = BEFORE, after: int = AFTER) -> Chain:
    """Node i's letter is the i-th; its children are 2i + 1 and 2i + 2."""
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
    """An `a` at a time, then one of many ways, each of which repeats its letter `tail` times."""
    chain: Chain = {"": {"a": 1.0}, "a" * fork_at: dict.fromkeys(WAYS, 1.0 / len(WAYS))}
    for way in WAYS:
        chain |= {way: {way: 1.0}, way * (tail + 1): {"": 1.0}}
    return chain


TOYS: Mapping[str, Callable[[], Chain]] = {"reconverging": reconverging, "one_fork": one_fork}
