"""Checks of a plan: refusal of everything that no tree can hold.

A tree policy is a user's code: it may raise, or answer with anything.
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from banyan.errors import InvalidInput, users_code, with_place
from banyan.plugins import Branch, Expansion, LeafMark, Plan
from banyan.segment import Finish, Origin, Sampling
from banyan.signals import Wanted
from banyan.text.printable import textual
from banyan.tree import Leaf, Tree

T = TypeVar("T")
_MAX_INT32 = 2**31 - 1
_MAX_TEMPERATURE = 100.0
_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.floating)


def checked_plan(ask: Callable[[], object], tree: Tree, policy: str, max_path_tokens: int) -> Plan:
    """Ask for a plan and return it.

    policy: the tree policy, as messages name it.
    max_path_tokens: tokens that a path may hold after the prompt.

    Raises InvalidInput that names the tree policy and says what is wrong with the plan, or what the
    policy raised and where.
    """
    with users_code(lambda error: f"{policy}: {with_place(error)}"):
        try:
            return _checked(ask(), tree, max_path_tokens)
        except InvalidInput as error:
            raise InvalidInput(f"{policy}: {error}", reason=error.reason) from error


def _checked(plan: object, tree: Tree, max_path_tokens: int) -> Plan:
    if not isinstance(plan, Plan):
        raise InvalidInput(f"a tree policy answers with a Plan, this one with {plan!r:.100}")
    for expansion in _items(plan.expansions, Expansion, "expansions"):
        _check_expansion(expansion, tree)
        _check_length(expansion, tree, max_path_tokens)
        _check_fork(expansion.branch, tree)
    for mark in _items(plan.leaves, LeafMark, "leaves"):
        _check_mark(mark, tree)
    for prune in _items(plan.prunes, tuple, "prunes"):
        if len(prune) != 2 or not isinstance(prune[0], Branch) or not _is_integer(prune[1], 0):
            raise InvalidInput(
                "a plan's prunes are pairs of a Branch and the tokens to keep of it,"
                f" got {prune!r:.100}"
            )
    _items(plan.dropped, Leaf, "dropped")
    for call in _items(plan.calls, Branch, "calls"):
        _check_call(call, tree)
    if not isinstance(plan.done, bool | np.bool_):
        raise InvalidInput(f"a plan's done is true or false, got {plan.done!r:.100}")
    return plan


def _items(values: Any, kind: type[T], name: str) -> Collection[T]:
    """Return the items of a plan under a name; raise InvalidInput unless all are of one kind."""
    if not isinstance(values, tuple | list | set | frozenset):
        raise InvalidInput(f"a plan's {name} are a tuple, got {values!r:.100}")
    for value in values:
        if not isinstance(value, kind):
            raise InvalidInput(
                f"a plan's {name} are each of kind {kind.__name__}, got {value!r:.100}"
            )
    return values


def _is_integer(value: object, least: int) -> bool:
    """Tell whether a value is an integer of at least `least`."""
    return isinstance(value, _INTEGERS) and not isinstance(value, bool) and bool(value >= least)


def _check_expansion(expansion: Expansion, tree: Tree) -> None:
    branch, forced = expansion.branch, expansion.forced
    if not isinstance(branch, Branch):
        raise InvalidInput(f"an expansion is of a Branch, got {branch!r:.100}")
    _check_place(branch.parent, branch.fork, 0, tree, "a branch leaves")
    if not _is_integer(branch.ordinal, 0) or branch.ordinal > _MAX_INT32:
        raise InvalidInput(
            f"a branch has ordinal {branch.ordinal!r}; ordinals are whole numbers from 0 on"
        )
    if problem := _problem(expansion.sampling):
        raise InvalidInput(f"{_label(branch)} asks for {problem}")
    if not isinstance(forced, tuple) or not all(_is_integer(token, 0) for token in forced):
        raise InvalidInput(
            f"{_label(branch)} has forced {forced!r:.100}; they are a tuple of token ids"
        )
    signals, origin = expansion.signals, expansion.origin
    if not isinstance(signals, Wanted) or not isinstance(origin, Origin):
        raise InvalidInput(
            f"{_label(branch)} has signals {signals!r:.100} and origin {origin!r:.50};"
            " they are a Wanted and an Origin"
        )


def _check_call(call: Branch, tree: Tree) -> None:
    action = tree.segments.get(call.parent)
    if action is None or action.finish is not Finish.TOOL_CALL:
        raise InvalidInput(f"{_label(call)} is called, and no action ends there")
    if (call.fork, call.ordinal) != (len(action), 0):
        raise InvalidInput(
            f"{_label(call)} is called; an answer is the first one behind its action"
        )


def _check_length(expansion: Expansion, tree: Tree, max_path_tokens: int) -> None:
    branch, forced = expansion.branch, len(expansion.forced)
    new = expansion.sampling.max_new_tokens
    before = tree.answer_length(branch.parent, branch.fork)
    if before + forced + new > max_path_tokens:
        also = f" and {forced} forced ones" if forced else ""
        raise InvalidInput(
            f"{_label(branch)} asks for {new} new tokens behind {before} tokens of its path{also};"
            f" a path holds {max_path_tokens} (max_path_tokens)"
        )


def _check_fork(branch: Branch, tree: Tree) -> None:
    """Raise InvalidInput for a fork behind something that was changed outside."""
    goes_on = branch.fork == len(tree.segments[branch.parent]) and branch.ordinal == 0
    if not goes_on and not tree.forks_at(branch.parent):
        raise InvalidInput(
            f"{_label(branch)} forks a path that changed something outside, which has no copy; let"
            " such a path go on alone (banyan.tree.Tree.forks_at)"
        )


@lru_cache(256)  # a plan has few of them for all its branches
def _problem(sampling: Sampling) -> str:
    """Return the part of a sampling that no engine can sample by; empty if there is none."""
    if not isinstance(sampling, Sampling):
        return f"sampling {sampling!r:.100}; it must be a Sampling"
    new, temperature, top_p = sampling.max_new_tokens, sampling.temperature, sampling.top_p
    top_k, seed, stop = sampling.top_k, sampling.seed, sampling.stop
    if not _is_integer(new, 1) or new > _MAX_INT32:
        return f"{new!r} new tokens; it must be a whole number of at least 1"
    if not isinstance(temperature, _NUMBERS) or not 0 <= temperature <= _MAX_TEMPERATURE:
        return f"temperature {temperature!r}; it must lie in 0..{_MAX_TEMPERATURE:g}"
    if not isinstance(top_p, _NUMBERS) or not 0 < top_p <= 1:
        return f"top_p {top_p!r}; it must be above 0 and at most 1"
    if not _is_integer(top_k, 0) or top_k > _MAX_INT32:
        return f"top_k {top_k!r}; it must be a whole number from 0 on"
    if not _is_integer(seed, 0) or seed >= 1 << 64:
        return f"seed {seed!r}; it must be a whole number from 0 to 2^64 - 1"
    if not all(isinstance(text, str) and text for text in stop):
        return f"stop {stop!r:.100}; they are texts"
    if not all(map(textual, stop)):
        return f"stop {stop!r:.100}; a lone surrogate is no text that a message can carry"
    return ""


def _check_mark(mark: LeafMark, tree: Tree) -> None:
    if not isinstance(mark.leaf, Leaf) or not isinstance(mark.reason, str):
        raise InvalidInput(f"a mark is a Leaf with a reason in words, got {mark!r:.100}")
    if not textual(mark.reason):
        raise InvalidInput(
            f"a mark has reason {mark.reason!r:.100}; a lone surrogate is no text that a message"
            " can carry"
        )
    _check_place(mark.leaf.segment, mark.leaf.end, 1, tree, "a leaf ends")
    if not tree.segments[mark.leaf.segment].parent:
        raise InvalidInput("a leaf ends in the prompt; a path needs at least one token behind it")


def _check_place(segment_id: bytes, tokens: int, least: int, tree: Tree, subject: str) -> None:
    """Raise InvalidInput unless the tree has a place.

    least: tokens of the segment that must lie before the place.
    subject: beginning of the message.
    """
    if not isinstance(segment_id, bytes):
        raise InvalidInput(
            f"{subject} segment {segment_id!r:.60}; a segment is named by its id, in bytes"
        )
    segment, name = tree.segments.get(segment_id), segment_id[:6].hex()
    if segment is None:
        raise InvalidInput(f"{subject} segment {name}, which the tree does not have")
    if not _is_integer(tokens, least) or tokens > len(segment):
        raise InvalidInput(
            f"{subject} behind {tokens!r} tokens of segment {name}, which has {len(segment)};"
            f" it must be {least} to {len(segment)}"
        )


def _label(branch: Branch) -> str:
    parent = branch.parent[:6].hex()
    return f"branch {branch.ordinal} behind {branch.fork} tokens of segment {parent}"
