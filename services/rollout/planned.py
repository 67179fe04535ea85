"""Asks a planner, and refuses what no tree can hold. A tree policy is anybody's code: it may raise, or answer anything."""

from collections.abc import Callable

import numpy as np

from banyan.errors import BanyanError, InvalidInput, with_place
from banyan.plugins import Branch, Expansion, LeafMark, Plan
from banyan.tree import Tree

_MOST_ORDINAL = 2**31 - 1
_WHOLE = (int, np.integer)


def planned(ask: Callable[[], object], tree: Tree, policy: str) -> Plan:
    """The plan of a policy. Raises InvalidInput that names it and says what is wrong, or what was raised and where."""
    try:
        return _checked(ask(), tree)
    except InvalidInput as error:
        raise InvalidInput(f"{policy}: {error}", reason=error.reason) from error
    except BanyanError:
        raise
    except Exception as error:
        raise InvalidInput(f"{policy}: {with_place(error)}") from error


def _checked(plan: object, tree: Tree) -> Plan:
    if not isinstance(plan, Plan):
        raise InvalidInput(f"a tree policy answers with a Plan, this one with {plan!r:.100}")
    for expansion in plan.expansions:
        _check_expansion(expansion, tree)
    for mark in plan.leaves:
        _check_mark(mark, tree)
    return plan


def _check_expansion(expansion: Expansion, tree: Tree) -> None:
    branch = expansion.branch
    _check_place(branch.parent, branch.fork, 0, tree, "a branch leaves")
    if not isinstance(branch.ordinal, _WHOLE) or not 0 <= branch.ordinal <= _MOST_ORDINAL:
        raise InvalidInput(f"a branch has ordinal {branch.ordinal!r}; ordinals are whole numbers from 0 on")
    new = expansion.sampling.max_new_tokens
    if not isinstance(new, _WHOLE) or new < 1:
        raise InvalidInput(f"{_said(branch)} asks for {new!r} new tokens; it must be a whole number of at least 1")


def _check_mark(mark: LeafMark, tree: Tree) -> None:
    _check_place(mark.leaf.segment, mark.leaf.end, 1, tree, "a leaf ends")
    if not tree.segments[mark.leaf.segment].parent:
        raise InvalidInput("a leaf ends in the prompt; a path needs at least one token behind it")


def _check_place(segment_id: bytes, tokens: int, least: int, tree: Tree, what: str) -> None:
    """least: tokens of the segment that must lie before the place."""
    segment = tree.segments.get(segment_id)
    if segment is None:
        raise InvalidInput(f"{what} segment {segment_id[:6].hex()}, which the tree does not have")
    if not isinstance(tokens, _WHOLE) or not least <= tokens <= len(segment):
        at = f"{what} behind {tokens!r} tokens of segment {segment_id[:6].hex()}"
        raise InvalidInput(f"{at}, which has {len(segment)}; it must be {least} to {len(segment)}")


def _said(branch: Branch) -> str:
    return f"branch {branch.ordinal} behind {branch.fork} tokens of segment {branch.parent[:6].hex()}"
