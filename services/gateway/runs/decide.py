"""The next actions of a run: a move to another state, groups and evaluations to open, processes.

Pure.

Events are only triggers to call it. The answer follows from stored facts, so a lost, late or
doubled event changes nothing but the moment (ADR 001).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from banyan.recipe import Recipe
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.domain import state_machine
from services.gateway.domain.state_machine import State
from services.gateway.runs import evaluation
from services.gateway.runs.evaluation import Evaluation, Measured
from services.gateway.runs.staleness_gate import Gate, GroupCounts

NOTHING_SCORED = "no sample of its {} batches has a score, so nothing was learnt"
NOTHING_GROWN = (
    "no tree of its {} batches has a leaf, so nothing was learnt;"
    " the tree policy made none, or dropped them"
)
# Minutes for begun groups to end after the time limit; half of the limit if that is more.
GRACE_MIN = 10.0
NO_EVALUATION = "no evaluation: the task holds out no rows (task.holdout)"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The known facts of a run.

    counts: training groups; None before the base policy is published.
    evals: evaluations, by label.
    given_up: messages about processes that the supervisor gave up.
    live_minutes: time that the run has been live.
    unstored: training groups that were published and that the store does not show yet.
    held_out: held-out rows.
    hopeless: message saying why no group will ever teach; empty if one may.
    fruitless: message saying why no step has changed the weights so far; empty if one has.
    """

    state: State
    counts: GroupCounts | None
    evals: Mapping[str, Measured] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()
    live_minutes: float = 0.0
    unstored: int = 0
    held_out: int = 0
    hopeless: str = ""
    fruitless: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A move to another state, with the cause that people read.

    explain: add the scorers' reasons for training trees to the cause.
    """

    to: State
    cause: str = ""
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions to take; empty for waiting.

    move: the move to another state.
    groups: training groups to open, from the first ordinal that is not stored.
    evaluations: evaluations to open or to complete.
    unscorable: an evaluation without any value: the run fails with the scorer's reason.
    """

    move: Move | None = None
    groups: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    unscorable: Evaluation | None = None


def decide(recipe: Recipe, facts: RunFacts) -> Decision:
    """Return the actions that a run needs now."""
    if not state_machine.working(facts.state):
        return Decision()
    failure = _failure(recipe, facts)
    if failure:
        return Decision(Move(S.RUN_STATE_FAILED, failure))
    if facts.counts is None:
        # The learner has published nothing: its process is starting, or a new one replays.
        return Decision()
    if facts.state == S.RUN_STATE_STARTING:
        return Decision(_started(recipe, facts))
    if facts.state == S.RUN_STATE_EVALUATING_BEFORE:
        return _measure(recipe, facts, "before", 0, Move(S.RUN_STATE_TRAINING))
    if facts.state == S.RUN_STATE_EVALUATING_AFTER:
        # The policy of the last batch is the newest one, also while a new learner replays.
        done = facts.counts.batches
        cause = _time_is_over(recipe, done) if done < recipe.budget.steps else ""
        return _measure(recipe, facts, "after", done, Move(S.RUN_STATE_SUCCEEDED, cause))
    return _train(recipe, facts, facts.counts)


def processes(recipe: Recipe, state: State) -> dict[str, int]:
    """Return the processes that a run wants in a state, by service."""
    return (
        {"rollout": recipe.resources.rollout_nodes, "learner": 1}
        if state_machine.working(state)
        else {}
    )


def _failure(recipe: Recipe, facts: RunFacts) -> str:
    if facts.given_up:
        return "; ".join(facts.given_up)
    limit = recipe.budget.minutes
    if limit is None or facts.live_minutes < limit:
        return ""
    trains = facts.state in (S.RUN_STATE_TRAINING, S.RUN_STATE_EVALUATING_AFTER)
    if not trains or facts.counts is None:
        return _nothing_trained(recipe)
    grace = max(GRACE_MIN, limit / 2)
    if facts.live_minutes >= limit + grace:
        over = _time_is_over(recipe, facts.counts.batches)
        return f"{over}, and what was begun did not end in {grace:g} more"
    return ""


def _late(recipe: Recipe, facts: RunFacts) -> bool:
    limit = recipe.budget.minutes
    return limit is not None and facts.live_minutes >= limit


def _time_is_over(recipe: Recipe, step: int) -> str:
    """Return a message about the run's time limit; empty without one."""
    limit = recipe.budget.minutes
    if limit is None:
        return ""
    return f"budget.minutes: {limit:g} minutes are over at step {step} of {recipe.budget.steps}"


def _nothing_trained(recipe: Recipe) -> str:
    return f"{_time_is_over(recipe, 0)}, and nothing was trained; begin a run with more of them"


def _started(recipe: Recipe, facts: RunFacts) -> Move:
    if evaluation.measured_rows(recipe, facts.held_out):
        return Move(S.RUN_STATE_EVALUATING_BEFORE)
    return Move(S.RUN_STATE_TRAINING, NO_EVALUATION)


def _measure(recipe: Recipe, facts: RunFacts, when: str, step: int, then: Move) -> Decision:
    """Open the pending evaluations of a step, or move on once all are over."""
    rows = evaluation.measured_rows(recipe, facts.held_out)
    wanted = evaluation.evaluations(recipe, when, step)
    worthless = evaluation.empty(wanted, facts.evals, rows)
    if worthless:
        return Decision(unscorable=worthless[0])
    pending = evaluation.pending(wanted, facts.evals, rows)
    if recipe.deterministic:
        # One wave at a time, so that no wave shares a decode batch with another.
        pending = pending[:1]
    return Decision(evaluations=tuple(pending)) if pending else Decision(then)


def _train(recipe: Recipe, facts: RunFacts, counts: GroupCounts) -> Decision:
    late, done = _late(recipe, facts), counts.step >= recipe.budget.steps
    if facts.hopeless and not done:
        return Decision(Move(S.RUN_STATE_FAILED, facts.hopeless))
    last = evaluation.barrier(recipe, facts.evals, evaluation.measured_rows(recipe, facts.held_out))
    if counts.step == last and not done and not (late and _unbegun(recipe, facts, last)):
        return _measure(recipe, facts, f"step-{last}", last, Move(facts.state))
    if done or (late and _settled(recipe, facts, counts)):
        return Decision(_ended(recipe, facts, counts))
    if late:
        return Decision()  # begun groups are trained on; no others are begun
    if recipe.deterministic and counts.open:
        # Replacements go out together once all others are done, so that timing decides nothing.
        return Decision()
    return Decision(groups=Gate.of(recipe.control).groups_to_open(counts, last))


def _ended(recipe: Recipe, facts: RunFacts, counts: GroupCounts) -> Move:
    """Return the move of a run that trains no more."""
    if not counts.batches:
        return Move(S.RUN_STATE_FAILED, _nothing_trained(recipe))
    if not counts.scored and not counts.leaves:
        return Move(S.RUN_STATE_FAILED, NOTHING_GROWN.format(counts.batches))
    if not counts.scored:
        return Move(S.RUN_STATE_FAILED, NOTHING_SCORED.format(counts.batches), explain=True)
    if facts.fruitless:
        return Move(S.RUN_STATE_FAILED, facts.fruitless)
    words = ""
    if counts.batches < recipe.budget.steps:
        words = _time_is_over(recipe, counts.batches)
    if evaluation.measured_rows(recipe, facts.held_out):
        return Move(S.RUN_STATE_EVALUATING_AFTER, words)
    return Move(S.RUN_STATE_SUCCEEDED, "; ".join(filter(None, (words, NO_EVALUATION))))


def _unbegun(recipe: Recipe, facts: RunFacts, step: int) -> bool:
    """Return True if no evaluation of a step has a tree yet."""
    wanted = evaluation.evaluations(recipe, f"step-{step}", step)
    return not any(facts.evals.get(e.label, Measured()).groups for e in wanted)


def _settled(recipe: Recipe, facts: RunFacts, counts: GroupCounts) -> bool:
    """Return True if the newest policy stays the newest: no batch can come of the open groups."""
    if counts.step < counts.batches or counts.open or facts.unstored:
        return False
    return counts.closed < recipe.control.groups_per_batch
