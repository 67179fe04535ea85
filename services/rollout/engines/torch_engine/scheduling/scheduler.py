"""Chooses which of the waiting requests fit now, and which of their prefixes are kept once for all their branches.

A request that does not fit lets those behind it go first, but not for ever: when `patience` of them have begun before it,
all wait until it fits.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from services.rollout.engines.port import Key, Request
from services.rollout.engines.torch_engine.kv.kv_budget import Memory
from services.rollout.engines.torch_engine.scheduling.admission import Group
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch, need, room

_LOOKED_AT = 64  # requests that do not fit that one choice looks at, so that a step looks not through thousands


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """Requests that fit. shared: prefixes that their branches share. claimed: pages set aside for all that runs then.
    pinned: tokens of all shared prefixes in use with them. passed: how many have begun before each that does not fit."""

    requests: tuple[Request, ...] = ()
    shared: Collection[bytes] = ()
    claimed: int = 0
    pinned: int = 0
    passed: Mapping[Key, int] = field(default_factory=dict)


def claimed(rows: Sequence[RunningBranch], held: Sequence[Group], memory: Memory) -> int:
    """Pages set aside for running branches and for groups whose prefix is being computed, beside the room of that prefix:
    their first branch, or all of them, will have it."""
    own = sum(memory.claim(row.need, row.own) for row in rows)
    due = sum(_claim(r, g.shared, memory) for g in held for r in g.requests)
    return own + due - sum(memory.pages.of(len(g.prefix_P)) for g in held if not g.shared)


def choose(
    queue: Sequence[Request],
    free: int,
    taken: int,
    memory: Memory,
    by_level: bool,
    passed: Mapping[Key, int],
) -> Admitted:
    """Up to `free` requests that fit beside `taken` claimed pages, in the order of the queue. passed: what the choice before
    said of them."""
    shared = _shared(queue[: free + len(passed)], memory) if by_level else set()
    chosen: list[Request] = []
    pinned: set[bytes] = set()
    in_use = memory.pinned
    late: dict[Key, int] = {}
    for request in queue:
        if len(chosen) == free or len(late) == _LOOKED_AT:
            break
        name = request.prefix_P.tobytes()
        more = _claim(request, name in shared, memory)
        new = room(request.prefix_P) if name in shared and name not in pinned else 0
        if memory.fits(taken + more, in_use + new):
            pinned.add(name)
            taken, in_use = taken + more, in_use + new
            chosen.append(request)
            late = {key: count + 1 for key, count in late.items()}
        else:
            late[request.key] = passed.get(request.key, 0)
        if any(count >= memory.limits.patience for count in late.values()):
            break
    return Admitted(tuple(chosen), shared, taken, in_use, late)


def _claim(request: Request, shared: bool, memory: Memory) -> int:
    above = len(request.prefix_P)
    return memory.claim(need(request) - above * shared, above * (not shared))


def _shared(requests: Sequence[Request], memory: Memory) -> set[bytes]:
    """Prefixes that so many branches begin with that they should not have a copy each."""
    counts = Counter(r.prefix_P.tobytes() for r in requests)
    prefixes = {r.prefix_P.tobytes(): r.prefix_P for r in requests}
    return {name for name, count in counts.items() if memory.worth_sharing(prefixes[name], count)}
