"""Asks a planner, and refuses what no tree can hold. A tree policy is anybody's code: it may raise, or answer anything."""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from banyan.errors import BanyanError, InvalidInput, with_place
from banyan.plugins import Branch, Expansion, LeafMark, Plan
from banyan.segment import Origin, Sampling
from banyan.signals import Wanted
from banyan.tree import Leaf, Tree

T = TypeVar("T")
_MOST_ORDINAL, _HOTTEST = 2**31 - 1, 100.0
_WHOLE, _REAL = (int, np.integer), (int, float, np.floating)


def planned(ask: Callable[[], object], tree: Tree, policy: str, longest: int) -> Plan:
    """The plan of a policy, whose paths hold at most `longest` tokens after the prompt. Raises InvalidInput that names it
    and says what is wrong, or what was raised and where."""
    try:
        return _checked(ask(), tree, longest)
    except InvalidInput as error:
        raise InvalidInput(f"{policy}: {error}", reason=error.reason) from error
    except BanyanError:
        raise
    except Exception as error:
        raise InvalidInput(f"{policy}: {with_place(error)}") from error


def _checked(plan: object, tree: Tree, longest: int) -> Plan:
    if not isinstance(plan, Plan):
        raise InvalidInput(f"a tree policy answers with a Plan, this one with {plan!r:.100}")
    for expansion in _all(plan.expansions, Expansion, "expansions"):
        _check_expansion(expansion, tree)
        _check_length(expansion, tree, longest)
    for mark in _all(plan.leaves, LeafMark, "leaves"):
        _check_mark(mark, tree)
    for pruned in _all(plan.prunes, tuple, "prunes"):
        if len(pruned) != 2 or not isinstance(pruned[0], Branch) or not _whole(pruned[1], 0):
            raise InvalidInput(
                f"a plan's prunes are pairs of a Branch and the tokens to keep of it, got {pruned!r:.100}"
            )
    _all(plan.dropped, Leaf, "dropped")
    if not isinstance(plan.done, bool | np.bool_):
        raise InvalidInput(f"a plan's done is true or false, got {plan.done!r:.100}")
    return plan


def _all(values: Any, kind: type[T], name: str) -> Collection[T]:
    """What a plan has under a name, all of one kind."""
    if not isinstance(values, tuple | list | set | frozenset):
        raise InvalidInput(f"a plan's {name} are a tuple, got {values!r:.100}")
    for value in values:
        if not isinstance(value, kind):
            raise InvalidInput(
                f"a plan's {name} are each of kind {kind.__name__}, got {value!r:.100}"
            )
    return values


def _whole(value: object, least: int) -> bool:
    return isinstance(value, _WHOLE) and not isinstance(value, bool) and bool(least <= value)


def _check_expansion(expansion: Expansion, tree: Tree) -> None:
    branch = expansion.branch
    if not isinstance(branch, Branch):
        raise InvalidInput(f"an expansion is of a Branch, got {branch!r:.100}")
    _check_place(branch.parent, branch.fork, 0, tree, "a branch leaves")
    if not _whole(branch.ordinal, 0) or branch.ordinal > _MOST_ORDINAL:
        raise InvalidInput(
            f"a branch has ordinal {branch.ordinal!r}; ordinals are whole numbers from 0 on"
        )
    if why := _unusable(expansion.sampling):
        raise InvalidInput(f"{_said(branch)} asks for {why}")
    if not isinstance(expansion.forced, tuple) or not all(
        _whole(token, 0) for token in expansion.forced
    ):
        raise InvalidInput(
            f"{_said(branch)} has forced {expansion.forced!r:.100}; they are a tuple of token ids"
        )
    if not isinstance(expansion.signals, Wanted) or not isinstance(expansion.origin, Origin):
        said = f"signals {expansion.signals!r:.100} and origin {expansion.origin!r:.50}"
        raise InvalidInput(f"{_said(branch)} has {said}; they are a Wanted and an Origin")


def _check_length(expansion: Expansion, tree: Tree, longest: int) -> None:
    branch, forced, new = expansion.branch, len(expansion.forced), expansion.sampling.max_new_tokens
    before = tree.prefix_length(branch.parent, branch.fork) - len(tree.root or ())
    if before + forced + new > longest:
        behind = f"behind {before} tokens of its path" + (
            f" and {forced} forced ones" if forced else ""
        )
        raise InvalidInput(
            f"{_said(branch)} asks for {new} new tokens {behind}; a path holds {longest} (max_path_tokens)"
        )


@lru_cache(256)  # a plan has few of them for all its branches
def _unusable(sampling: Sampling) -> str:
    """What of it nobody can sample by; nothing where it can be."""
    if not isinstance(sampling, Sampling):
        return f"sampling {sampling!r:.100}; it must be a Sampling"
    s = sampling
    if not _whole(s.max_new_tokens, 1) or s.max_new_tokens > _MOST_ORDINAL:
        return f"{s.max_new_tokens!r} new tokens; it must be a whole number of at least 1"
    if not isinstance(s.temperature, _REAL) or not 0 <= s.temperature <= _HOTTEST:
        return f"temperature {s.temperature!r}; it must lie in 0..{_HOTTEST:g}"
    if not isinstance(s.top_p, _REAL) or not 0 < s.top_p <= 1:
        return f"top_p {s.top_p!r}; it must be above 0 and at most 1"
    if not _whole(s.top_k, 0) or s.top_k > _MOST_ORDINAL:
        return f"top_k {s.top_k!r}; it must be a whole number from 0 on"
    if not _whole(s.seed, 0) or s.seed >= 1 << 64:
        return f"seed {s.seed!r}; it must be a whole number from 0 to 2^64 - 1"
    return (
        ""
        if all(isinstance(text, str) and text for text in s.stop)
        else f"stop {s.stop!r:.100}; they are texts"
    )


def _check_mark(mark: LeafMark, tree: Tree) -> None:
    if not isinstance(mark.leaf, Leaf) or not isinstance(mark.reason, str):
        raise InvalidInput(f"a mark is a Leaf with a reason in words, got {mark!r:.100}")
    _check_place(mark.leaf.segment, mark.leaf.end, 1, tree, "a leaf ends")
    if not tree.segments[mark.leaf.segment].parent:
        raise InvalidInput("a leaf ends in the prompt; a path needs at least one token behind it")


def _check_place(segment_id: bytes, tokens: int, least: int, tree: Tree, what: str) -> None:
    """least: tokens of the segment that must lie before the place."""
    segment = tree.segments.get(segment_id) if isinstance(segment_id, bytes) else None
    if segment is None:
        if not isinstance(segment_id, bytes):
            raise InvalidInput(
                f"{what} segment {segment_id!r:.60}; a segment is named by its id, in bytes"
            )
        raise InvalidInput(f"{what} segment {segment_id[:6].hex()}, which the tree does not have")
    if not _whole(tokens, least) or tokens > len(segment):
        at = f"{what} behind {tokens!r} tokens of segment {segment_id[:6].hex()}"
        raise InvalidInput(f"{at}, which has {len(segment)}; it must be {least} to {len(segment)}")


def _said(branch: Branch) -> str:
    return (
        f"branch {branch.ordinal} behind {branch.fork} tokens of segment {branch.parent[:6].hex()}"
    )
