"""Growth of one tree: ended segments go in; requests, and segments to publish, come out.

The grower does no I/O and reads no clock. It asks the planner of the tree policy after every change
and carries out the part of the plan that is neither in the tree nor in flight. A tree that is
resumed from the store therefore goes on with exactly the branches that have no segment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from banyan import reward
from banyan.draws import Draws
from banyan.environments.endings import Ending
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
from banyan.segment import Segment
from banyan.tree import Leaf, Tree
from services.rollout.engines.port import Request, Sampled, Tokenizer
from services.rollout.engines.turns import actions_of
from services.rollout.growth import repairs, view_digest
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.plan_checks import checked_plan
from services.rollout.growth.plan_log import PlanLog
from services.rollout.growth.planner import planner
from services.rollout.growth.requests import BranchKey, RequestBuilder
from services.rollout.growth.scores import LeafScore
from services.rollout.growth.segments import SegmentBuilder, ToolAnswer
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import Call, GrowthStep, in_order, inside, open_calls
from services.rollout.growth.view_digest import ViewDigest


@dataclass(slots=True)
class Grower:
    """The growth of one tree under one claim.

    spec: assignment of the tree.
    tree: the tree so far; the grower adds to it.
    tokenizer: tokenizer of the engine.
    producer: name of the node, for new segments.
    claim: epoch of the claim; the engine's keys of two claims on one tree differ by it.
    leaves: leaves with their reasons; those that the store knows are not announced again.
    rewards: rewards of leaves; None for a leaf that will have none.
    repairs: repairs of leaves in tokens.
    grant: newest growth budget from control, if there was any.
    in_flight: expansions that the engine has not answered, by branch.
    acting: ends of actions that the environment has not answered.
    """

    spec: GrowSpec
    tree: Tree
    tokenizer: Tokenizer
    producer: str
    claim: int = 0
    leaves: dict[Leaf, str] = field(default_factory=dict)
    rewards: dict[Leaf, float | None] = field(default_factory=dict)
    repairs: dict[Leaf, Repaired] = field(default_factory=dict)
    grant: BudgetGrant | None = None
    in_flight: dict[Branch, Expansion] = field(default_factory=dict)
    acting: set[Branch] = field(default_factory=set)
    _budget: GrowthBudget = field(init=False)
    _view: GrowthView = field(init=False)  # changes with the fields that it shows, read-only
    _digest: ViewDigest = field(init=False)  # of the view's parts, kept as these change
    _log: PlanLog = field(init=False)
    _requests: RequestBuilder = field(init=False)
    _segments: SegmentBuilder = field(init=False)
    _planner: Planner | None = field(init=False, default=None)  # for this budget
    _marked: set[Leaf] = field(init=False, default_factory=set)  # by this planner
    _pruned: set[Branch] = field(init=False, default_factory=set)
    _is_over: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._view = GrowthView(
            tree=self.tree,
            seed=self.spec.seed,
            max_path_tokens=self.spec.max_path_tokens,
            in_flight=self.in_flight.keys(),
            leaves=MappingProxyType(self.leaves),
            rewards=MappingProxyType(self.rewards),
            sampling=self.spec.sampling,
            repairs=MappingProxyType(self.repairs),
            acting=self.acting,
        )
        self._digest = view_digest.parts(self._view)
        self._log = PlanLog(
            claim=self.claim,
            segments=list(self.tree.segments),
            found=list(self.leaves),
            grant=self.grant,
        )
        self._requests = RequestBuilder(self.spec, self.tree, self.claim)
        self._segments = SegmentBuilder(
            self.tree,
            self.tokenizer,
            self.producer,
            self.spec.max_path_tokens,
            actions_of(self.spec.turns, self.tokenizer),
        )
        budget = GrowthBudget(step=self.spec.min_step)
        self._budget = self.grant.apply(budget) if self.grant is not None else budget

    def start(self) -> GrowthStep:
        """Return the first plan; make the root if the tree has none."""
        if self.tree.root is not None:
            return self._plan(News())
        root = self._segments.root(self.spec.messages)
        self._add(root)
        return self._plan(News((root,)))

    def ended(self, samples: Sequence[Sampled]) -> GrowthStep:
        """Take in the segments that ended in one step of the engine."""
        segments: list[Segment] = []
        gone: list[Branch] = []
        for sample in samples:
            if not isinstance(sample.key, BranchKey) or sample.key.branch not in self.in_flight:
                continue
            branch = sample.key.branch
            expansion = self.in_flight.pop(branch)
            self._digest.in_flight(branch, -1)
            new = self._segments.of_sample(expansion, sample, pruned=branch in self._pruned)
            for segment in new:
                self._add(segment)
            segments += new
            if not new:
                gone.append(branch)
        return self._plan(News(segments, gone=gone))

    def answered(self, action: bytes, answer: ToolAnswer) -> GrowthStep:
        """Take in the environment's answer to an action."""
        last = self.tree.segments[action]
        branch = Branch(action, len(last), 0)
        if branch not in self.acting:
            return GrowthStep()
        self.acting.discard(branch)
        segment = self._segments.answer(last, answer)
        self._add(segment)
        return self._plan(News((segment,)))

    def unanswered(self, action: bytes, ending: Ending) -> GrowthStep:
        """Take in that an action gets no answer: its path ends there, with the proof."""
        leaf = Leaf(action, len(self.tree.segments[action]))
        branch = Branch(leaf.segment, leaf.end, 0)
        if branch not in self.acting:
            return GrowthStep()
        self.acting.discard(branch)
        self.leaves[leaf] = ""  # as a later claim finds it
        self._log.found.append(leaf)
        self._digest.leaf(leaf, "")
        self._marked.add(leaf)
        step = self._plan(News(unanswered=(leaf,)))
        mark = LeafMark(leaf, ending.reason)
        return replace(step, leaves=(mark, *step.leaves), endings={leaf: ending})

    def scored(self, scores: Sequence[LeafScore]) -> GrowthStep:
        """Take in all scores that the store has of the tree."""
        rewards = reward.rewards(
            ((score.leaf, score.scorer, score.value) for score in scores),
            self.spec.scorers,
            self.spec.weights,
        )
        new = {leaf: value for leaf, value in rewards.items() if leaf in self.leaves}
        new = self._unknown(new)
        return self._rewarded(new, repairs.of_scores(scores, new, self.tree, self.tokenizer))

    def unscored(self) -> GrowthStep:
        """Go on without further scores: leaves without a reward have none for the policy either."""
        return self._rewarded(self._unknown(dict.fromkeys(self.leaves)), {})

    def budget_granted(self, grant: BudgetGrant) -> GrowthStep:
        """Take in a growth budget from control; return an empty step for a known round."""
        if grant.round <= self.round:
            return GrowthStep()
        self.grant = self._log.grant = grant
        return self._plan_within(grant.apply(self._budget))

    def budget_withheld(self) -> GrowthStep:
        """End the tree within its present growth budget, because control is silent."""
        self._log.grant_lapsed = True
        return self._plan_within(replace(self._budget, final=True))

    @property
    def round(self) -> int:
        """The number of growth budgets that control granted so far."""
        return self.grant.round if self.grant is not None else 0

    @property
    def waits(self) -> bool:
        """True if only rewards of leaves or a grant of control let the tree go on."""
        return self.lacks_scores or self.lacks_budget

    @property
    def lacks_scores(self) -> bool:
        """True if the tree goes on only when its leaves have their rewards."""
        waits = self.spec.traits.needs_scores and self._is_idle
        return waits and any(leaf not in self.rewards for leaf in self.leaves)

    @property
    def lacks_budget(self) -> bool:
        """True if the tree goes on only when control grants a growth budget."""
        return self.spec.traits.needs_room and self._is_idle and not self._budget.final

    def key(self, branch: Branch) -> BranchKey:
        """Return the engine's key of a branch."""
        return self._requests.key(branch)

    def completion(self, leaf: Leaf) -> str:
        """Return the text of a path after the prompt, or after its last answer of an environment,
        decoded as a whole.
        """
        tokens_T = self.tree.prefix_tokens(leaf.segment, leaf.end)
        return self.tokenizer.decode(tokens_T[self.tree.context_length(leaf.segment, leaf.end) :])

    @property
    def _is_idle(self) -> bool:
        return not (self._is_over or self.in_flight or self.acting)

    def _add(self, segment: Segment) -> None:
        self.tree.add(segment)
        self._digest.segment(segment.id)

    def _unknown(self, rewards: Rewards) -> dict[Leaf, float | None]:
        return {leaf: value for leaf, value in rewards.items() if leaf not in self.rewards}

    def _rewarded(self, new: Rewards, repaired: Mapping[Leaf, Repaired]) -> GrowthStep:
        self.rewards |= new
        self.repairs |= repaired
        for leaf, value in new.items():
            self._digest.reward(leaf, value, repaired.get(leaf))
        self._log.rewards |= new
        self._log.repairs |= repaired
        return self._plan(News(scored=list(new))) if new else GrowthStep()

    def _plan_within(self, budget: GrowthBudget) -> GrowthStep:
        """Plan anew: a planner keeps to one budget."""
        self._budget, self._planner, self._marked = budget, None, set()
        return self._plan(News())

    def _plan(self, news: News) -> GrowthStep:
        """Ask for a plan and return what is new in it."""
        digest = partial(view_digest.digest, self._view, self._digest.sum, self._budget)
        self._log.segments += [segment.id for segment in news.segments]
        self._log.gone += news.gone
        plan = checked_plan(
            partial(self._ask, news),
            self.tree,
            policy=self.spec.tree_policy_label,
            max_path_tokens=self.spec.max_path_tokens,
        )
        expansions = self._new_expansions(plan)
        requests = self._request(expansions)
        marks = self._mark(plan)
        prunes = self._prune(plan)
        calls = self._call(plan)
        self._is_over = plan.done and not self.in_flight and not self.acting
        records = self._log.record(
            digest, expansions, marks, prunes, done=plan.done, dropped=plan.dropped
        )
        return GrowthStep(
            requests=requests,
            segments=tuple(news.segments),
            leaves=marks,
            aborts=tuple(branch for branch, _ in prunes),
            grown=in_order(self.tree, self._marked) if self._is_over else None,
            plans=records,
            calls=calls,
            inside=self._inside() if self._is_over else (),
        )

    def _ask(self, news: News) -> Plan:
        if self._planner is not None:
            return self._planner.plan(news)
        draws = Draws(self.spec.seed)
        self._planner = planner(self.spec.tree_policy, self._view, self._budget, draws)
        return self._planner.plan()

    def _new_expansions(self, plan: Plan) -> list[Expansion]:
        """Return the expansions that are neither in flight nor in the tree, one for each branch."""
        expansions = {}
        for expansion in plan.expansions:
            branch = expansion.branch
            if branch in self.in_flight:
                continue
            if self.tree.at(branch.parent, branch.fork, branch.ordinal) is None:
                expansions[branch] = expansion
        return list(expansions.values())

    def _request(self, expansions: Sequence[Expansion]) -> tuple[Request, ...]:
        ending = {e.branch for e in expansions if self._segments.ends_path(e.forced)}
        for expansion in expansions:
            self.in_flight[expansion.branch] = expansion
            self._digest.in_flight(expansion.branch, 1)
        return self._requests.build(expansions, ending)

    def _call(self, plan: Plan) -> tuple[Call, ...]:
        """Return the actions of a plan that have no answer and are not asked for yet."""
        calls, ended = open_calls(plan.calls, self.leaves.keys(), self.tree)
        self._marked.update(ended)
        new = [branch for branch in calls if branch not in self.acting]
        self.acting.update(new)
        return tuple(
            Call(
                branch.parent,
                self.completion(Leaf(branch.parent, branch.fork)),
                self._requests.order(branch.parent),
            )
            for branch in new
        )

    def _mark(self, plan: Plan) -> tuple[LeafMark, ...]:
        """Note the leaves of a plan and return the new ones."""
        self._marked.update(mark.leaf for mark in plan.leaves)
        self._marked.difference_update(plan.dropped)
        new = (mark for mark in plan.leaves if mark.leaf not in self.leaves)
        marks = tuple(map(self._segments.reasoned, new))
        for mark in marks:
            self.leaves[mark.leaf] = mark.reason
            self._digest.leaf(mark.leaf, mark.reason)
        return marks

    def _prune(self, plan: Plan) -> list[tuple[Branch, int]]:
        """Return the prunes of running branches that are new."""
        prunes = [
            (branch, end)
            for branch, end in plan.prunes
            if branch in self.in_flight and branch not in self._pruned
        ]
        self._pruned.update(branch for branch, _ in prunes)
        return prunes

    def _inside(self) -> tuple[Leaf, ...]:
        return inside(self.tree, self.leaves.keys() - self._marked, self._marked)


def announced(leaves: Iterable[Leaf]) -> dict[Leaf, str]:
    """Return leaves that the store knows, in the form that `Grower.leaves` has."""
    return dict.fromkeys(leaves, "")
