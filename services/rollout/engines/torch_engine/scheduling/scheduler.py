"""The choice of the waiting requests that fit now, and of the prefixes that their branches share.

A request that does not fit lets those behind it go first, within limits: when `patience` of them
have begun before it, all wait until it fits.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from services.rollout.engines.port import Key, Request
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget
from services.rollout.engines.torch_engine.scheduling.admission import Group
from services.rollout.engines.torch_engine.scheduling.branches import (
    RunningBranch,
    longest_path,
    slot_capacity,
)

_MAX_PASSED = 64  # unfit requests that one choice examines: a step must not scan thousands


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """Requests that fit.

    requests: the requests, in the order of the queue.
    shared: prefixes that their branches share.
    claimed: pages set aside for all that runs with them.
    pinned: tokens of all shared prefixes in use with them.
    passed: by each request that does not fit, the requests that have begun before it.
    """

    requests: tuple[Request, ...] = ()
    shared: Collection[bytes] = ()
    claimed: int = 0
    pinned: int = 0
    passed: Mapping[Key, int] = field(default_factory=dict)


def claimed_pages(
    branches: Sequence[RunningBranch], prefilling: Sequence[Group], kv_budget: KvBudget
) -> int:
    """Return the pages set aside for running branches and for groups in chunked prefill.

    The prefix of such a group is not counted: its first branch, or all of them, will have it.
    """
    running = sum(kv_budget.claim(branch.need, branch.own) for branch in branches)
    pending, in_slots = 0, 0
    for group in prefilling:
        pending += sum(_claim(request, group.shared, kv_budget) for request in group.requests)
        in_slots += 0 if group.shared else kv_budget.pages.of(len(group.prefix_P))
    return running + pending - in_slots


def choose(
    queue: Sequence[Request],
    *,
    free: int,
    claimed: int,
    kv_budget: KvBudget,
    by_level: bool,
    passed: Mapping[Key, int],
) -> Admitted:
    """Choose up to `free` requests that fit beside `claimed` pages, in the order of the queue.

    by_level: whether branches can share a trunk.
    passed: the count of the previous choice, see Admitted.
    """
    shared = _shared(queue[: free + len(passed)], kv_budget) if by_level else set()
    chosen: list[Request] = []
    pinned_names: set[bytes] = set()
    pinned = kv_budget.pinned
    late: dict[Key, int] = {}
    for request in queue:
        if len(chosen) == free or len(late) == _MAX_PASSED:
            break
        name = request.prefix_P.tobytes()
        pages = _claim(request, name in shared, kv_budget)
        newly_pinned = name in shared and name not in pinned_names
        tokens = slot_capacity(request.prefix_P) if newly_pinned else 0
        if kv_budget.fits(claimed + pages, pinned + tokens):
            pinned_names.add(name)
            claimed, pinned = claimed + pages, pinned + tokens
            chosen.append(request)
            late = {key: count + 1 for key, count in late.items()}
        else:
            late[request.key] = passed.get(request.key, 0)
        if any(count >= kv_budget.limits.patience for count in late.values()):
            break
    return Admitted(
        requests=tuple(chosen), shared=shared, claimed=claimed, pinned=pinned, passed=late
    )


def _claim(request: Request, shared: bool, kv_budget: KvBudget) -> int:
    total, prefix = longest_path(request), len(request.prefix_P)
    if shared:
        return kv_budget.claim(total - prefix, 0)
    return kv_budget.claim(total, prefix)


def _shared(requests: Sequence[Request], kv_budget: KvBudget) -> set[bytes]:
    """Return the prefixes of so many branches that copies would cost more than sharing."""
    counts = Counter(request.prefix_P.tobytes() for request in requests)
    prefixes = {request.prefix_P.tobytes(): request.prefix_P for request in requests}
    return {
        name for name, count in counts.items() if kv_budget.worth_sharing(prefixes[name], count)
    }
