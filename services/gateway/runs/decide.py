"""What a run needs now: a move to another state, groups and evaluations to open, processes. Pure.

Events are only triggers to call it: the answer follows from what the store says, so a lost, late or doubled event
changes nothing but the moment (DESIGN 3).
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
NOTHING_GROWN = "no tree of its {} batches has a leaf, so nothing was learnt; the tree policy made none, or dropped them"
# at least so long may take what was begun when the time was over, and at least half of the time
GRACE_MIN = 10.0
NO_EVALUATION = "no evaluation: the task holds out no rows (task.holdout)"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run."""

    state: State
    standing: GroupCounts | None  # none before the base policy is published
    evals: Mapping[str, Measured] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()  # processes that the supervisor gave up, in words
    live_minutes: float = 0.0
    # training groups that were said to the log and that the store does not show yet
    unheard: int = 0
    held_out: int = 0
    hopeless: str = ""  # why no group will ever teach, in words
    fruitless: str = ""  # why no step has changed the weights so far, in words


@dataclass(frozen=True, slots=True)
class Move:
    """To another state, with the cause that people read."""

    to: State
    cause: str = ""
    explain: bool = False  # with what scorers said of training trees


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do. Empty: wait."""

    move: Move | None = None
    groups: int = 0  # training groups to open, from the first ordinal that is not stored
    evaluations: tuple[Evaluation, ...] = ()  # evaluations to open, or to complete
    # an evaluation that has no value at all: fail the run with the scorer's reason
    unscorable: Evaluation | None = None


def decide(recipe: Recipe, facts: RunFacts) -> Decision:
    """What a run needs now."""
    if not state_machine.working(facts.state):
        return Decision()
    failure = _failure(recipe, facts)
    if failure:
        return Decision(Move(S.RUN_STATE_FAILED, failure))
    if facts.standing is None:
        # the learner has published nothing: its process is starting, or a new one replays
        return Decision()
    if facts.state == S.RUN_STATE_STARTING:
        return Decision(_started(recipe, facts))
    if facts.state == S.RUN_STATE_EVALUATING_BEFORE:
        return _measure(recipe, facts, "before", 0, Move(S.RUN_STATE_TRAINING))
    if facts.state == S.RUN_STATE_EVALUATING_AFTER:
        # its policy is the newest one, also while a new learner replays
        done = facts.standing.batches
        cause = _time_is_over(recipe, done) if done < recipe.budget.steps else ""
        return _measure(recipe, facts, "after", done, Move(S.RUN_STATE_SUCCEEDED, cause))
    return _train(recipe, facts, facts.standing)


def processes(recipe: Recipe, state: State) -> dict[str, int]:
    """Processes that a run wants in a state, by service."""
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
    step = facts.standing.batches if facts.standing else 0
    if (
        facts.state not in (S.RUN_STATE_TRAINING, S.RUN_STATE_EVALUATING_AFTER)
        or facts.standing is None
    ):
        return _nothing_trained(recipe)
    if facts.live_minutes >= limit + max(GRACE_MIN, limit / 2):
        return f"{_time_is_over(recipe, step)}, and what was begun did not end in {max(GRACE_MIN, limit / 2):g} more"
    return ""


def _late(recipe: Recipe, facts: RunFacts) -> bool:
    limit = recipe.budget.minutes
    return limit is not None and facts.live_minutes >= limit


def _time_is_over(recipe: Recipe, step: int) -> str:
    """Empty where there is no such limit."""
    limit = recipe.budget.minutes
    return (
        ""
        if limit is None
        else f"budget.minutes: {limit:g} minutes are over at step {step} of {recipe.budget.steps}"
    )


def _nothing_trained(recipe: Recipe) -> str:
    return f"{_time_is_over(recipe, 0)}, and nothing was trained; begin a run with more of them"


def _started(recipe: Recipe, facts: RunFacts) -> Move:
    if evaluation.measured_rows(recipe, facts.held_out):
        return Move(S.RUN_STATE_EVALUATING_BEFORE)
    return Move(S.RUN_STATE_TRAINING, NO_EVALUATION)


def _measure(recipe: Recipe, facts: RunFacts, when: str, step: int, then: Move) -> Decision:
    """Opens what is pending of a step's evaluations; moves on when all are over."""
    rows = evaluation.measured_rows(recipe, facts.held_out)
    wanted = evaluation.evaluations(recipe, when, step)
    worthless = evaluation.empty(wanted, facts.evals, rows)
    if worthless:
        return Decision(unscorable=worthless[0])
    pending = evaluation.pending(wanted, facts.evals, rows)
    if recipe.deterministic:
        # one wave at a time, so that no wave shares a decode batch with another
        pending = pending[:1]
    return Decision(evaluations=tuple(pending)) if pending else Decision(then)


def _train(recipe: Recipe, facts: RunFacts, standing: GroupCounts) -> Decision:
    late, done = _late(recipe, facts), standing.step >= recipe.budget.steps
    if facts.hopeless and not done:
        return Decision(Move(S.RUN_STATE_FAILED, facts.hopeless))
    last = evaluation.barrier(recipe, facts.evals, evaluation.measured_rows(recipe, facts.held_out))
    if standing.step == last and not done and not (late and _unbegun(recipe, facts, last)):
        return _measure(recipe, facts, f"step-{last}", last, Move(facts.state))
    if done or (late and _settled(recipe, facts, standing)):
        return Decision(_ended(recipe, facts, standing))
    if late:
        return Decision()  # what was begun is trained on; nothing else is begun
    if recipe.deterministic and standing.open:
        # replacements go out together when all others are done, so that timing decides nothing
        return Decision()
    gate = Gate.of(recipe.control)
    return Decision(groups=gate.room(standing, last))


def _ended(recipe: Recipe, facts: RunFacts, standing: GroupCounts) -> Move:
    """Where a run goes that trains no more."""
    if not standing.batches:
        return Move(S.RUN_STATE_FAILED, _nothing_trained(recipe))
    if not standing.scored and not standing.leaves:
        return Move(S.RUN_STATE_FAILED, NOTHING_GROWN.format(standing.batches))
    if not standing.scored:
        return Move(S.RUN_STATE_FAILED, NOTHING_SCORED.format(standing.batches), explain=True)
    if facts.fruitless:
        return Move(S.RUN_STATE_FAILED, facts.fruitless)
    words = (
        _time_is_over(recipe, standing.batches) if standing.batches < recipe.budget.steps else ""
    )
    if evaluation.measured_rows(recipe, facts.held_out):
        return Move(S.RUN_STATE_EVALUATING_AFTER, words)
    return Move(S.RUN_STATE_SUCCEEDED, "; ".join(filter(None, (words, NO_EVALUATION))))


def _unbegun(recipe: Recipe, facts: RunFacts, step: int) -> bool:
    """Whether no evaluation of a step has a tree yet."""
    wanted = evaluation.evaluations(recipe, f"step-{step}", step)
    return not any(facts.evals.get(e.label, Measured()).groups for e in wanted)


def _settled(recipe: Recipe, facts: RunFacts, standing: GroupCounts) -> bool:
    """Whether no further batch can come of what was opened: the newest policy stays the newest."""
    trained = standing.step >= standing.batches
    return (
        trained
        and not (standing.open or facts.unheard)
        and standing.closed < recipe.control.groups_per_batch
    )
