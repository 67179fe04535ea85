"""The part of a run that is under way: what it is, how much of it is done. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from banyan.progress.time_left import Work
from banyan.recipe import Recipe
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs


@dataclass(frozen=True, slots=True)
class Status:
    """The part of a run that is under way.

    words: the part, as people read it.
    done: steps of the run, or rows of an evaluation, that are done.
    wanted: how many there are; 0 if the part has nothing to count.
    """

    words: str
    done: int = 0
    wanted: int = 0


def work_of(recipe: Recipe, run: rs.Run) -> Work:
    """Return the parts of a run."""
    minutes = recipe.budget.minutes
    return Work(
        steps=recipe.budget.steps,
        every=recipe.eval.every,
        rows=measured_rows(recipe, run) * len(kinds(recipe)),
        seconds=None if minutes is None else 60.0 * minutes,
    )


def kinds(recipe: Recipe) -> tuple[str, ...]:
    """Return the kinds of evaluations of one policy."""
    sampled = ("sampled",) if recipe.eval.samples else ()
    voted = ("voted",) if recipe.eval.votes is not None else ()
    return ("greedy", *sampled, *voted)


def measured_rows(recipe: Recipe, run: rs.Run) -> int:
    """Return the number of rows that an evaluation of one kind measures."""
    return min(len(run.held_out), recipe.eval.max_rows)


def moment(label: str, steps: int) -> int | None:
    """Return the step whose policy an evaluation measures; None for a label of another form.

    The last evaluation counts as that of the last step, also if the time was over before.
    """
    when = label.rsplit("-", 1)[0]
    number = when.removeprefix("step-")
    return {"before": 0, "after": steps}.get(when, int(number) if number.isdigit() else None)


def order(label: str) -> tuple[int, int, str]:
    """Return the key by which evaluations are sorted: before, the steps, after; then the kind.

    The store has them in the order of their labels. Labels of another form come last.
    """
    when, step = label.rsplit("-", 1)[0], moment(label, 0)
    return {"before": 0, "after": 2}.get(when, 3 if step is None else 1), step or 0, label


def newest_step(recipe: Recipe, news: gw.WatchRunResponse) -> int:
    """Return the newest step, and the last one if none is trained any more."""
    ends = news.run.state == rs.RUN_STATE_EVALUATING_AFTER
    return recipe.budget.steps if ends else news.progress.step


def rows_done(recipe: Recipe, news: gw.WatchRunResponse) -> dict[int, int]:
    """Return the rows that are done of each evaluation that was opened, by its step."""
    rows, done = measured_rows(recipe, news.run), dict[int, int]()
    for measured in news.progress.evals:
        step = moment(measured.label, recipe.budget.steps)
        if step is not None:
            done[step] = done.get(step, 0) + min(rows, measured.done)
    return done


def status(recipe: Recipe, news: gw.WatchRunResponse, processes: Callable[[], str]) -> Status:
    """Return the part under way. processes: returns the run's processes that do not serve yet."""
    phase = rs.RunState.Name(news.run.state).removeprefix("RUN_STATE_").lower().replace("_", " ")
    loading = processes()
    if loading or news.run.state == rs.RUN_STATE_STARTING or not news.progress.HasField("step"):
        return Status(": ".join(filter(None, ("loading the model", loading))))
    work, step = work_of(recipe, news.run), newest_step(recipe, news)
    evaluates = news.run.state != rs.RUN_STATE_TRAINING or 0 < step < work.steps
    done = rows_done(recipe, news).get(step, 0)
    if evaluates and work.measured(step) and done < work.rows:
        where = f"evaluating step {step}" if news.run.state == rs.RUN_STATE_TRAINING else phase
        return Status(f"{where}: {_counted(recipe, news, step)}", done, work.rows)
    if news.run.state == rs.RUN_STATE_EVALUATING_AFTER:
        return Status("writing the checkpoint", work.rows, work.rows)
    if news.run.state != rs.RUN_STATE_TRAINING:
        return Status(phase)
    return Status(_training(recipe, news.progress), step, work.steps)


def _counted(recipe: Recipe, news: gw.WatchRunResponse, step: int) -> str:
    rows = measured_rows(recipe, news.run)
    done = {
        measured.label.rsplit("-", 1)[1]: min(rows, measured.done)
        for measured in news.progress.evals
        if moment(measured.label, recipe.budget.steps) == step
    }
    parts = (f"{kind} {done.get(kind, 0)} of {rows}" for kind in kinds(recipe))
    return f"{', '.join(parts)} rows"


def _training(recipe: Recipe, progress: rs.ReadProgressResponse) -> str:
    steps, wanted = recipe.budget.steps, recipe.control.groups_per_batch
    if progress.step >= steps:
        return f"step {steps} of {steps} is done"
    if progress.batches > progress.step:
        return f"step {progress.step + 1} of {steps}: the learner trains"
    ready = min(progress.groups.closed, wanted)
    return f"step {progress.step + 1} of {steps}: {ready} of {wanted} groups sampled and scored"
