"""Grows one tree: what ended goes in, what to sample and what to publish comes out. No I/O, no clock.

It asks the tree policy's planner after every change, and carries out what is not there and not in flight yet. So a tree
resumed from the store goes on with exactly the branches that have no segment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import MappingProxyType

from banyan import order, reward
from banyan.draws import Draws, branch_key
from banyan.plugins import (
    Branch,
    Expansion,
    GrowthBudget,
    GrowthView,
    LeafMark,
    News,
    Plan,
    Planner,
    Repaired,
    Rewards,
)
from banyan.segment import Finish, IntTokens, Kind, Origin, Segment
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire.segments import rewards_from_wire
from services.rollout.engines.port import Request, Sampled, Tokenizer
from services.rollout.growth import plan_log, repairs, view_digest
from services.rollout.growth import segments as pieces
from services.rollout.growth.plan_checks import planned
from services.rollout.growth.plan_log import PlanLog
from services.rollout.growth.planner import planner
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.view_digest import ViewDigest


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """What follows from a change. `grown` is None until no branch will ever be asked for again; then all leaves."""

    requests: tuple[Request, ...] = ()
    segments: tuple[Segment, ...] = ()
    leaves: tuple[LeafMark, ...] = ()
    aborts: tuple[Branch, ...] = ()
    grown: tuple[Leaf, ...] | None = None
    plans: Sequence[tree_pb2.PlanRecord] = ()  # the plan that followed, for the log
    inside: tuple[
        Leaf, ...
    ] = ()  # of a grown tree: places that were marked, are no leaves, and that paths go on from


@dataclass(slots=True)
class Grower:
    """One tree under one claim. `claim` makes the engine's keys of two claims on one tree differ."""

    spec: GrowSpec
    tree: Tree
    tokenizer: Tokenizer
    producer: str
    claim: int = 0
    leaves: dict[Leaf, str] = field(default_factory=dict)
    rewards: dict[Leaf, float | None] = field(default_factory=dict)
    repairs: dict[Leaf, Repaired] = field(default_factory=dict)
    given: tree_pb2.TreeRoom | None = None  # by control, the newest round
    in_flight: dict[Branch, Expansion] = field(default_factory=dict)
    _pruned: set[Branch] = field(default_factory=set)
    _over: bool = False
    _room: GrowthBudget = field(init=False)
    _view: GrowthView = field(init=False)  # changes with what it shows; a policy cannot change it
    _planner: Planner | None = None  # of this room
    _marked: set[Leaf] = field(default_factory=set)  # by this planner
    _paths: dict[bytes, order.Path] = field(
        default_factory=dict
    )  # of segments, as far as they were asked for
    _log: PlanLog = field(init=False)
    _seen: ViewDigest = field(init=False)  # what the view holds, kept as it changes

    def __post_init__(self) -> None:
        flying, leaves, rewards = (
            self.in_flight.keys(),
            MappingProxyType(self.leaves),
            MappingProxyType(self.rewards),
        )
        path, sampling, repairs = (
            self.spec.max_path_tokens,
            self.spec.sampling,
            MappingProxyType(self.repairs),
        )
        self._view = GrowthView(
            self.tree, self.spec.seed, path, flying, leaves, rewards, sampling, repairs
        )
        self._seen = view_digest.parts(self._view)
        self._log = PlanLog(
            self.claim, list(self.tree.segments), list(self.leaves), room=self.given
        )
        room = GrowthBudget(step=self.spec.min_step)
        self._room = plan_log.given(room, self.given) if self.given is not None else room

    def start(self) -> GrowthStep:
        """The first plan; makes the root if the tree has none."""
        made = () if self.tree.root is not None else (self._root(),)
        for segment in made:
            self._add(segment)
        return self._plan(News(made))

    def ended(self, sampled: Sequence[Sampled]) -> GrowthStep:
        """Takes segments that ended in one engine step."""
        made, gone = list[Segment](), list[Branch]()
        for one in sampled:
            branch = one.key[2] if isinstance(one.key, tuple) else None
            expansion = self.in_flight.pop(branch, None) if isinstance(branch, Branch) else None
            if expansion is None:
                continue
            self._seen.flying(expansion.branch, -1)
            new = self._segments(expansion, one)
            for segment in new:
                self._add(segment)
            made += new
            if not new:
                gone.append(expansion.branch)
        return self._plan(News(made, gone=gone))

    def scored(self, scores: Sequence[tree_pb2.ScoredLeaf]) -> GrowthStep:
        """Takes all scores that the store has of the tree."""
        found = rewards_from_wire(scores, self.spec.scorers)
        new = {
            leaf: value
            for leaf, value in found.items()
            if leaf in self.leaves and leaf not in self.rewards
        }
        return self._rewarded(new, repairs.of_scores(scores, new, self.tree, self.tokenizer))

    def unscored(self) -> GrowthStep:
        """No more scores will come: leaves without a reward have none for the policy either."""
        return self._rewarded(dict.fromkeys(self.leaves))

    def _rewarded(
        self, found: Rewards, repaired: Mapping[Leaf, Repaired] = MappingProxyType({})
    ) -> GrowthStep:
        new = {leaf: value for leaf, value in found.items() if leaf not in self.rewards}
        self.rewards |= new
        self.repairs |= repaired
        for leaf, value in new.items():
            self._seen.reward(leaf, value, repaired.get(leaf))
        self._log.rewards |= new
        self._log.repairs |= repaired
        return self._plan(News(scored=list(new))) if new else GrowthStep()

    def roomed(self, given: tree_pb2.TreeRoom) -> GrowthStep:
        """Takes the room that control gave; nothing follows from a round that is known."""
        if given.round <= self.round:
            return GrowthStep()
        self.given = self._log.room = given
        return self._plan_in(plan_log.given(self._room, given))

    def unroomed(self) -> GrowthStep:
        """Control is silent: the tree ends with the room that it has."""
        self._log.lapsed = True
        return self._plan_in(replace(self._room, final=True))

    @property
    def round(self) -> int:
        """How often control gave room."""
        return self.given.round if self.given is not None else 0

    @property
    def waits(self) -> bool:
        """Whether nothing will happen before leaves have their rewards, or control gives room."""
        return self.lacks_scores or self.lacks_room

    @property
    def lacks_scores(self) -> bool:
        """Whether nothing will happen before leaves have their rewards."""
        return self._idle("needs_scores") and any(leaf not in self.rewards for leaf in self.leaves)

    @property
    def lacks_room(self) -> bool:
        """Whether nothing will happen before control gives room."""
        return self._idle("needs_room") and not self._room.final

    def _idle(self, need: str) -> bool:
        return getattr(self.spec.policy, need, False) and not self._over and not self.in_flight

    def key(self, branch: Branch) -> tuple[bytes, int, Branch]:
        """The engine's key of a branch."""
        return (self.spec.tree_id, self.claim, branch)

    def completion(self, leaf: Leaf) -> str:
        """The path's text after the prompt, decoded as one."""
        assert self.tree.root is not None
        return self.tokenizer.decode(
            self.tree.prefix_tokens(leaf.segment, leaf.end)[len(self.tree.root) :]
        )

    # -- planning --

    def _add(self, segment: Segment) -> None:
        self.tree.add(segment)
        self._seen.segment(segment.id)

    def _plan_in(self, room: GrowthBudget) -> GrowthStep:
        self._room, self._planner, self._marked = room, None, set()
        return self._plan(News())

    def _plan(self, news: News) -> GrowthStep:
        seen = self._seen.sum
        self._log.fresh += [segment.id for segment in news.segments]
        self._log.gone += news.gone
        plan = planned(
            partial(self._asked, news), self.tree, self.spec.said, self.spec.max_path_tokens
        )
        wanted = {e.branch: e for e in plan.expansions if self._missing(e.branch)}
        requests = self._requests(wanted.values())
        self._marked.update(mark.leaf for mark in plan.leaves)
        self._marked.difference_update(plan.dropped)
        marks = tuple(mark for mark in plan.leaves if mark.leaf not in self.leaves)
        for mark in marks:
            self.leaves[mark.leaf] = mark.reason
            self._seen.leaf(mark.leaf, mark.reason)
        aborts = tuple(
            branch
            for branch, _ in plan.prunes
            if branch in self.in_flight and branch not in self._pruned
        )
        self._pruned.update(aborts)
        self._over = plan.done and not self.in_flight
        prunes = [(branch, end) for branch, end in plan.prunes if branch in aborts]
        digest = partial(view_digest.digest, self._view, seen, self._room)
        records = self._log.record(
            digest, list(wanted.values()), marks, prunes, plan.done, plan.dropped
        )
        grown, inside = (self._grown(), self._inside()) if self._over else (None, ())
        return GrowthStep(requests, tuple(news.segments), marks, aborts, grown, records, inside)

    def _asked(self, news: News) -> Plan:
        if self._planner is not None:
            return self._planner.plan(news)
        self._planner = planner(self.spec.policy, self._view, self._room, Draws(self.spec.seed))
        return self._planner.plan()

    def _grown(self) -> tuple[Leaf, ...]:
        """All leaves by their places: the order in which they came depends on what ended first."""
        paths = order.paths(self.tree)
        return tuple(sorted(self._marked, key=lambda leaf: order.at(paths, leaf.segment, leaf.end)))

    def _inside(self) -> tuple[Leaf, ...]:
        """Places that were put before scorers, and that paths to leaves go on from."""
        taken_back = self.leaves.keys() - self._marked
        above = (
            {segment.id: (segment.parent, segment.fork) for segment in self.tree}
            if taken_back
            else {}
        )
        return tuple(sorted(reward.inner(taken_back, self._marked, above)))

    def _missing(self, branch: Branch) -> bool:
        return (
            branch not in self.in_flight
            and self.tree.at(branch.parent, branch.fork, branch.ordinal) is None
        )

    def _requests(self, wanted: Iterable[Expansion]) -> tuple[Request, ...]:
        """Requests at one place share their prefix."""
        prefixes: dict[tuple[bytes, int], IntTokens] = {}
        for branch in (expansion.branch for expansion in wanted):
            place = branch.parent, branch.fork
            if place not in prefixes:
                prefixes[place] = self.tree.prefix_tokens(*place)
                prefixes[place].flags.writeable = False
        return tuple(self._request(e, prefixes[e.branch.parent, e.branch.fork]) for e in wanted)

    def _request(self, expansion: Expansion, prefix: IntTokens) -> Request:
        branch, sampling = expansion.branch, expansion.sampling
        self.in_flight[branch] = expansion
        self._seen.flying(branch, 1)
        if self._ends(expansion.forced):
            sampling = replace(
                sampling, max_new_tokens=1
            )  # only to hear of the forced tokens: nothing follows an end
        most = len(expansion.forced) + sampling.max_new_tokens
        return Request(
            key=self.key(branch),
            prefix_P=prefix,
            draw_key=branch_key(self.spec.seed, branch.parent, branch.fork, branch.ordinal),
            sampling=sampling,
            keep=len(prefix) - len(self._view.root) + most < self.spec.max_path_tokens,
            order=(*self.spec.order, *self._order(branch.parent), branch.fork, branch.ordinal),
            forced=expansion.forced,
            signals=expansion.signals,
        )

    def _path_tokens(self, branch: Branch) -> int:
        """Tokens after the prompt, before a branch."""
        assert self.tree.root is not None
        return self.tree.prefix_length(branch.parent, branch.fork) - len(self.tree.root)

    def _order(self, segment_id: bytes) -> tuple[int, ...]:
        """The logical place of a segment, in one row of numbers, as engines compare them."""
        return tuple(chain.from_iterable(order.path(segment_id, self.tree.segments, self._paths)))

    # -- segments --

    def _root(self) -> Segment:
        tokens = self.tokenizer.encode_chat(self.spec.messages)
        text = "\n".join(str(m.get("content", "")) for m in self.spec.messages)
        return Segment(
            self.spec.tree_id, b"", 0, 0, Kind.PROMPT, tokens, text=text, producer=self.producer
        )

    def _segments(self, expansion: Expansion, one: Sampled) -> list[Segment]:
        """What a branch became, parents first: nothing, a segment, or one of forced tokens and what was sampled after."""
        branch, given = expansion.branch, len(expansion.forced)
        if len(one.tokens_T) < max(1, given):
            return []
        finish, made, ends = (
            self._finish(branch, one),
            list[Segment](),
            self._ends(expansion.forced),
        )
        for start, stop in pieces.spans(given, given if ends else len(one.tokens_T)):
            forced = start < given
            at = Branch(made[-1].id, given, 0) if made else branch
            made.append(
                Segment(
                    tree_id=self.spec.tree_id,
                    parent=at.parent,
                    fork=at.fork,
                    ordinal=at.ordinal,
                    kind=Kind.FORCED if forced else Kind.POLICY,
                    origin=expansion.origin if forced else Origin.NONE,
                    tokens_T=one.tokens_T[start:stop],
                    logprobs_T=one.logprobs_T[start:stop],
                    sampled_logprobs_T=pieces.sampled(
                        one, start, stop, forced, expansion.sampling.truncated
                    ),
                    policy=one.policy.digest,
                    sampling=expansion.sampling,
                    finish=finish if not forced else Finish.STOP if ends else Finish.BOUNDARY,
                    policy_epoch=one.policy.epoch,
                    policy_step=one.policy.step,
                    producer=self.producer,
                    text=self.tokenizer.decode(one.tokens_T[start:stop]),
                    cached_tokens=self.tree.prefix_length(branch.parent, branch.fork) + given
                    if made
                    else one.cached_tokens,
                    entropies_T=one.entropies_T[start:stop],
                    signals=one.signals[start:stop],
                )
            )
        return made

    def _ends(self, forced: tuple[int, ...]) -> bool:
        """Whether forced tokens end the path: the last of them is the model's end token."""
        return bool(forced) and forced[-1] in self.tokenizer.eos

    def _finish(self, branch: Branch, one: Sampled) -> Finish:
        """The engine knows the segment's limit; the path's limit and a prune are known here."""
        if one.finish is Finish.ABORTED and branch in self._pruned:
            return Finish.PRUNED
        tokens = self._path_tokens(branch) + len(one.tokens_T)
        full = one.finish is Finish.BOUNDARY and tokens >= self.spec.max_path_tokens
        return Finish.LENGTH if full else one.finish


def resumed(leaves: Mapping[Leaf, str] | Sequence[Leaf]) -> dict[Leaf, str]:
    """Leaves that the store knows of: they are not announced again."""
    return dict(leaves) if isinstance(leaves, Mapping) else dict.fromkeys(leaves, "")
