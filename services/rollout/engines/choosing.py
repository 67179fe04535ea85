"""Chooses which of the waiting requests fit now, and which of their prefixes are kept once for all their branches."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from services.rollout.engines.admission import Group
from services.rollout.engines.memory import Memory
from services.rollout.engines.port import Request
from services.rollout.engines.rows import need


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Requests that fit. shared: prefixes that their branches share. need: tokens that a slot may come to. pinned: tokens of
    all prefixes that are in use with them."""

    requests: tuple[Request, ...] = ()
    shared: Collection[bytes] = ()
    need: int = 0
    pinned: int = 0


def choose(queue: Sequence[Request], needs: Sequence[int], held: Sequence[Group], memory: Memory, by_level: bool) -> Chosen:
    """From the front of the queue, as many as fit beside running branches, whose slots may come to `needs`, and groups whose
    prefix is being computed. They take no turns: who does not fit holds up those behind it."""
    shared = _shared(queue, memory) if by_level else set()
    chosen: list[Request] = []
    pinned = {group.name: len(group.prefix_P) for group in held}
    in_use, longest = memory.pinned, max((*needs, *(group.need for group in held)), default=0)
    taken = len(needs) + sum(len(group.requests) for group in held)
    for request in queue:
        name = request.prefix_P.tobytes()
        new = name not in pinned
        pinned[name] = len(request.prefix_P)
        longer = max(longest, need(request) - len(request.prefix_P) * (name in shared))
        if not memory.fits(taken + len(chosen) + 1, longer, in_use + sum(pinned.values())):
            if new:
                del pinned[name]
            break
        longest = longer
        chosen.append(request)
    return Chosen(tuple(chosen), shared, longest, in_use + sum(pinned.values()))


def _shared(requests: Sequence[Request], memory: Memory) -> set[bytes]:
    """Prefixes that so many branches begin with that they should not have a copy each."""
    counts = Counter(r.prefix_P.tobytes() for r in requests)
    prefixes = {r.prefix_P.tobytes(): r.prefix_P for r in requests}
    return {name for name, count in counts.items() if memory.worth_sharing(prefixes[name], count)}
