"""Groups of requests that start together, with one prefill per distinct prefix."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from banyan.segment import IntTokens, Sampling
from services.rollout.engines.port import Request
from services.rollout.engines.torch_engine.kv.prefix_cache import Match, PrefixCache
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch

_MIN_SHARED = 8  # common fresh tokens from which on one of two prefixes is computed first
_MAX_PADDING = 2.0  # padded over real tokens in a prefill batch


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Requests with the same prefix.

    prefix_P: the prefix. At least its last token is computed, for the logits.
    requests: the requests.
    match: the cached part of the prefix.
    shared: whether the branches attend to one stored prefix, instead of a copy each.
    """

    prefix_P: IntTokens
    requests: list[Request]
    match: Match
    shared: bool = False

    @property
    def begins(self) -> tuple[int, int, bytes]:
        """Key of the first fresh tokens: groups with equal keys share more than is cached yet."""
        at = self.match.length
        last = id(self.match.parts[-1][0]) if self.match.parts else 0
        return last, at, self.prefix_P[at : at + _MIN_SHARED].tobytes()

    def shares(self, prefix_P: IntTokens) -> bool:
        """Return whether a prefix could use the fresh tokens that this group computes."""
        end = min(self.match.length + _MIN_SHARED, len(self.prefix_P))
        return len(prefix_P) >= end and bool((prefix_P[:end] == self.prefix_P[:end]).all())

    @property
    def name(self) -> bytes:
        """The prefix as a key."""
        return self.prefix_P.tobytes()

    @property
    def fresh(self) -> int:
        """Tokens to prefill."""
        return len(self.prefix_P) - self.match.length

    def branches(self) -> Iterator[RunningBranch]:
        """Yield a branch for each request; the first one accounts for the prefill."""
        size = len(self.prefix_P)
        for i, request in enumerate(self.requests):
            cached = self.match.length if i == 0 else size
            yield RunningBranch(request, cached_tokens=cached, written=size)


def next_wave(
    requests: Sequence[Request], prefix_cache: PrefixCache, shared: Collection[bytes]
) -> tuple[list[Group], list[Request]]:
    """Return the groups to prefill side by side, and the requests that should wait for them.

    Groups come in the order of their first request. A request waits where a group of this wave
    computes a trunk that it shares. shared: prefixes that branches share one block of.
    """
    groups: dict[bytes, Group] = {}
    begun: dict[tuple[int, int, bytes], Group] = {}
    later: list[Request] = []
    for request in requests:
        prefix, name = request.prefix_P, request.prefix_P.tobytes()
        group = groups.get(name)
        if group is None:
            match = prefix_cache.match(prefix, len(prefix) - 1)
            group = Group(prefix_P=prefix, requests=[], match=match, shared=name in shared)
        if begun.setdefault(group.begins, group) is not group:
            later.append(request)
            continue
        groups[name] = group
        group.requests.append(request)
    return list(groups.values()), later


def batches(groups: Sequence[Group], max_tokens: int) -> list[list[Group]]:
    """Cut groups, in order, into prefill batches that are neither too large nor mostly padding."""
    result: list[list[Group]] = []
    for group in groups:
        if result and _joins(result[-1], group, max_tokens):
            result[-1].append(group)
        else:
            result.append([group])
    return result


def _joins(batch: Sequence[Group], group: Group, max_tokens: int) -> bool:
    fresh = [*(g.fresh for g in batch), group.fresh]
    longest = max(len(g.prefix_P) for g in (*batch, group))
    padded = max(fresh) * len(fresh)
    return longest * len(fresh) <= max_tokens and padded <= _MAX_PADDING * sum(fresh)


@dataclass(frozen=True, slots=True)
class FirstDraws:
    """Distributions of the first tokens of groups. Equal prefix and sampling share one.

    group_D: the group of each distribution.
    sampling_D: its sampling.
    distribution_R: the distribution of each request.
    """

    group_D: list[int]
    sampling_D: list[Sampling]
    distribution_R: list[int]


def first_draws(groups: Sequence[Group]) -> FirstDraws:
    """Return the distributions that groups draw their first tokens from."""
    draws = FirstDraws([], [], [])
    for g, group in enumerate(groups):
        for i, request in enumerate(group.requests):
            if i == 0 or request.sampling != group.requests[i - 1].sampling:
                draws.group_D.append(g)
                draws.sampling_D.append(request.sampling)
            draws.distribution_R.append(len(draws.group_D) - 1)
    return draws
