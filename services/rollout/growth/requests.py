"""Requests to an engine for the expansions of one tree."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from banyan import order
from banyan.draws import branch_key
from banyan.plugins import Branch, Expansion
from banyan.segment import IntTokens, Sampling
from banyan.signals import Wanted
from banyan.tree import Tree
from services.rollout.engines.port import Request
from services.rollout.growth.spec import GrowSpec


class BranchKey(NamedTuple):
    """Key of a branch in the engine; those of two claims on one tree differ."""

    tree_id: bytes
    claim: int
    branch: Branch


@dataclass(slots=True)
class RequestBuilder:
    """Builder of requests for one tree under one claim.

    spec: assignment of the tree.
    tree: the tree, which the builder only reads.
    claim: epoch of the claim.
    """

    spec: GrowSpec
    tree: Tree
    claim: int
    _paths: dict[bytes, order.Path] = field(init=False, default_factory=dict)  # known so far

    def key(self, branch: Branch) -> BranchKey:
        """Return the engine's key of a branch."""
        return BranchKey(self.spec.tree_id, self.claim, branch)

    def build(
        self, expansions: Collection[Expansion], ending: Collection[Branch]
    ) -> tuple[Request, ...]:
        """Return a request for each expansion; those at one place share the array of their prefix.

        ending: branches whose forced tokens end their path. One token is sampled after these, only
        so that the engine reports the forced ones; nothing follows an end.
        """
        prefixes: dict[tuple[bytes, int], IntTokens] = {}
        requests = []
        for expansion in expansions:
            branch = expansion.branch
            place = (branch.parent, branch.fork)
            if place not in prefixes:
                prefixes[place] = self.tree.prefix_tokens(*place)
                prefixes[place].flags.writeable = False
            requests.append(self._request(expansion, prefixes[place], branch in ending))
        return tuple(requests)

    def logical_place(self, segment_id: bytes) -> tuple[int, ...]:
        """Return the logical place of a segment as a flat tuple, which engines can compare."""
        return tuple(chain.from_iterable(order.path(segment_id, self.tree.segments, self._paths)))

    def order(self, segment_id: bytes) -> tuple[int, ...]:
        """Return the logical place of a segment among those of all trees."""
        return (*self.spec.order, *self.logical_place(segment_id))

    def _request(self, expansion: Expansion, prefix_P: IntTokens, ending: bool) -> Request:
        branch, sampling = expansion.branch, self._within(expansion, len(prefix_P))
        if ending:
            sampling = replace(sampling, max_new_tokens=1)
        assert self.tree.root is not None
        path_tokens = len(prefix_P) - len(self.tree.root)
        longest = path_tokens + len(expansion.forced) + sampling.max_new_tokens
        return Request(
            key=self.key(branch),
            prefix_P=prefix_P,
            draw_key=branch_key(self.spec.seed, branch.parent, branch.fork, branch.ordinal),
            sampling=sampling,
            keep=longest < self.spec.max_path_tokens,
            forks_inside=self.spec.traits.forks_inside,
            acts=self._may_act(branch),
            order=(*self.order(branch.parent), branch.fork, branch.ordinal),
            forced=expansion.forced,
            signals=self._signals(expansion),
        )

    def _signals(self, expansion: Expansion) -> Wanted:
        """Return the signals of an expansion, and the head's score where the spec asks for it."""
        if not self.spec.head or expansion.signals.head:
            return expansion.signals
        return replace(expansion.signals, head=True)

    def _may_act(self, branch: Branch) -> bool:
        """Return whether an action at a branch would be answered."""
        turns = self.spec.turns
        return turns is not None and turns.taken(self.tree, branch) < turns.most

    def _within(self, expansion: Expansion, before: int) -> Sampling:
        """Return the sampling of an expansion, with as many tokens as the path has room for where
        answers of an environment take some of it.
        """
        sampling, turns = expansion.sampling, self.spec.turns
        if turns is None or not turns.longest_path:
            return sampling
        left = max(1, turns.longest_path - before - len(expansion.forced))
        return replace(sampling, max_new_tokens=min(left, sampling.max_new_tokens))
