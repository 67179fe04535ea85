"""Groups the requests that start together: one prefill per distinct prefix, batched so that padding stays small."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from banyan.segment import IntTokens, Sampling
from services.rollout.engines.port import Request
from services.rollout.engines.torch_engine.kv.prefix_cache import Match, PrefixStore
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch

_SHARED = 8  # fresh tokens that two prefixes must share before it pays to compute one of them first
_MOST_PADDING = 2.0  # padded over real tokens in a prefill batch


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Requests with one prefix, and what of it is cached. At least its last token is computed, for the logits.

    shared: whether its branches attend to the prefix where it is kept, instead of having a copy each.
    """

    prefix_P: IntTokens
    requests: list[Request]
    match: Match
    shared: bool = False

    @property
    def begins(self) -> tuple[int, int, bytes]:
        """Where and how its fresh tokens begin: groups with the same answer share more than is cached yet."""
        at = self.match.length
        last = id(self.match.parts[-1][0]) if self.match.parts else 0
        return last, at, self.prefix_P[at : at + _SHARED].tobytes()

    def shares(self, prefix_P: IntTokens) -> bool:
        """Whether a prefix goes on behind what is cached as this one does, so that it could use what is computed here."""
        upto = min(self.match.length + _SHARED, len(self.prefix_P))
        return len(prefix_P) >= upto and bool((prefix_P[:upto] == self.prefix_P[:upto]).all())

    @property
    def name(self) -> bytes:
        """Its prefix, to compare by."""
        return self.prefix_P.tobytes()

    @property
    def fresh(self) -> int:
        """Tokens to prefill."""
        return len(self.prefix_P) - self.match.length

    def rows(self) -> Iterator[RunningBranch]:
        """Its branches as rows. The first one pays for the prefill."""
        for i, request in enumerate(self.requests):
            yield RunningBranch(
                request, self.match.length if i == 0 else len(self.prefix_P), len(self.prefix_P)
            )


def next_wave(
    requests: Sequence[Request], store: PrefixStore, shared: Collection[bytes]
) -> tuple[list[Group], list[Request]]:
    """Groups that can be prefilled side by side, in order of their first request; and the requests that should wait for
    them, because a group of this wave computes a trunk that they share. shared: prefixes that branches share a block of."""
    found: dict[bytes, Group] = {}
    begun: dict[tuple[int, int, bytes], Group] = {}
    later: list[Request] = []
    for request in requests:
        prefix, name = request.prefix_P, request.prefix_P.tobytes()
        group = found.get(name) or Group(
            prefix, [], store.match(prefix, len(prefix) - 1), name in shared
        )
        if begun.setdefault(group.begins, group) is not group:
            later.append(request)
            continue
        found[name] = group
        group.requests.append(request)
    return list(found.values()), later


def batches(groups: Sequence[Group], most_tokens: int) -> list[list[Group]]:
    """Cuts groups, in their order, into prefill batches that are neither too large nor mostly padding."""
    out: list[list[Group]] = []
    for group in groups:
        if out and _joins(out[-1], group, most_tokens):
            out[-1].append(group)
        else:
            out.append([group])
    return out


def _joins(batch: Sequence[Group], group: Group, most_tokens: int) -> bool:
    together = [*(g.fresh for g in batch), group.fresh]
    longest = max(len(g.prefix_P) for g in (*batch, group))
    padded = max(together) * len(together)
    return longest * len(together) <= most_tokens and padded <= _MOST_PADDING * sum(together)


def sources(groups: Sequence[Group]) -> tuple[list[int], list[Sampling], list[int]]:
    """Distributions that groups draw their first tokens from: the group of each and its sampling; and the distribution of
    each request. Requests with the same prefix and sampling share one."""
    of, samplings, which = [], [], []
    for g, group in enumerate(groups):
        for i, request in enumerate(group.requests):
            if i == 0 or request.sampling != group.requests[i - 1].sampling:
                of.append(g)
                samplings.append(request.sampling)
            which.append(len(of) - 1)
    return of, samplings, which
