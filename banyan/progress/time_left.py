"""Estimate of the time that a run still takes, from the times of its steps and evaluations. Pure.

A run is a row of parts: an evaluation, steps, and evaluations after some of them. A part takes
about as long as those of its kind did, and rows of an evaluation end when those of the one before
it did. Nothing else counts: neither the loading of models, nor the pause before a resume, nor the
steps that an earlier session did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from banyan.progress import step_time
from banyan.progress.step_time import Steps

_NEWEST = 10  # steps that are enough if they are not all of this session
_OVERDUE = 0.1  # share of a step that is still to come when it takes longer than others
_TELLING = 0.1  # share of an evaluation from which on its own speed says how long it takes
_EVEN = ((0.0, 0.0), (1.0, 1.0))  # shares of time and rows of an evaluation before one is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The parts of a run. Step 0 is the model that it begins with.

    steps: steps of the whole run.
    every: steps between evaluations during the run; 0 for none.
    rows: answers that an evaluation counts, greedy and sampled ones; 0 if there are no evaluations.
    seconds: limit of the run's time without pauses; None without one.
    """

    steps: int
    every: int = 0
    rows: int = 0
    seconds: float | None = None

    def measured(self, step: int) -> bool:
        """Return whether the policy of this step is evaluated before the run goes on."""
        ends = step in (0, self.steps)
        return bool(self.rows) and (ends or (bool(self.every) and step % self.every == 0))

    def evaluations_after(self, step: int) -> int:
        """Return the number of evaluations of later steps than this one."""
        if not self.rows or step >= self.steps:
            return 0
        within = (self.steps - 1) // self.every - step // self.every if self.every else 0
        return within + 1


@dataclass(slots=True)
class _Measuring:
    """An evaluation under way.

    begun: when this session saw it begin, or go on.
    before: rows that were done then.
    course: times at which more rows were done, with these.
    """

    begun: float
    before: int
    course: list[tuple[float, int]] = field(default_factory=list)

    def add(self, rows: int, at: float) -> None:
        """Note the rows that are done."""
        if not self.course or rows > self.rows:
            self.course.append((at, rows))

    @property
    def rows(self) -> int:
        """Rows that are done."""
        return self.course[-1][1] if self.course else self.before

    @property
    def changed(self) -> float:
        """Time at which there were first so many."""
        return self.course[-1][0] if self.course else self.begun


class Pace:
    """Times of the parts of a run that are over, and of the part under way.

    Times are seconds of any clock; clocks may differ between epochs of the learner.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._newest: dict[int, tuple[int, float]] = {}  # step and its time, by epoch
        self._steps: list[Steps] = []
        self._earlier = 0  # of them are of earlier sessions
        self._with_evaluation: list[float] = []  # a step and the evaluation before it
        self._evaluations: list[float] = []
        self._course: Sequence[tuple[float, float]] = _EVEN  # of the newest
        self._running: dict[int, _Measuring] = {}  # by step
        self._measured: set[int] = set()  # steps whose evaluation is over
        self._first_step: float | None = None
        self._since: float | None = None  # when the part under way began

    def begin(self, at: float | None) -> None:
        """Note when the part under way began; None for a session that only loads its models yet."""
        self._since = at
        if at is None:
            self._earlier = len(self._steps)

    def step(self, epoch: int, step: int, at: float, work: float = 0.0) -> None:
        """Note the time of a step's policy, and the tokens that the learner computed for it.

        Only steps of one epoch of the learner are compared: a new epoch is a new process, which
        first loads the model, perhaps days later.
        """
        if epoch in self._newest:
            before, then = self._newest[epoch]
            if step <= before:
                return  # known: a restarted gateway sends everything once more
            if step == before + 1 and self._work.measured(before):
                self._with_evaluation.append(at - then)
            elif not any(map(self._work.measured, range(before, step))):
                self._add(Steps(step - before, at - then, work))
        if step == 1 and self._since is not None:
            self._first_step = at - self._since
        self._newest[epoch] = step, at
        self._since = at

    def _add(self, new: Steps) -> None:
        if self._steps and not new.seconds:  # news of several steps came at once
            last = self._steps.pop()
            new = Steps(last.count + new.count, last.seconds, last.work + new.work)
        if new.seconds:
            self._steps.append(new)

    def evaluation(self, step: int, rows: int, at: float) -> None:
        """Note how many rows of a step's evaluation are done, from the moment a node works on it.

        One that was over before this session took no time that is known.
        """
        if step in self._measured:
            return
        running = self._running.get(step)
        if rows < self._work.rows:
            if running is None:
                running = self._running[step] = _Measuring(at, rows)
                self._since = at
            running.add(rows, at)
            return
        self._measured.add(step)
        if running is not None:
            running.add(rows, at)
            share = (rows - running.before) / self._work.rows
            self._evaluations.append((at - running.begun) / share)
            if not running.before:
                self._course = _shares(running, self._work.rows)
            self._since = at

    def left(self, step: int, at: float, lived: float = 0.0) -> float | None:
        """Return the seconds to the end of the last evaluation; None while nothing tells them.

        step: newest step; the last one if the run is in its last evaluation.
        lived: seconds that the run has taken, without pauses.
        """
        work, steps = self._work, self._work.steps - step
        per_step, evaluations = self.of_a_step(steps), work.evaluations_after(step)
        pending = work.measured(step) and step not in self._measured
        whole = self.of_an_evaluation(at) if pending or evaluations else 0.0
        if whole is None or (steps and per_step is None):
            return None
        each = per_step or 0.0
        left = steps * each + evaluations * whole
        if pending:
            left += self._rest(step, whole, at)
        elif steps and self._since is not None:
            left -= min(at - self._since, each * (1 - _OVERDUE))
        if work.seconds is not None and steps:
            left = min(left, max(0.0, work.seconds - lived) + (whole if evaluations else 0.0))
        return left

    def of_a_step(self, coming: int = 0) -> float | None:
        """Return the mean time of so many coming steps; None before any was timed.

        Of earlier sessions, which may have been on another machine, the newest count until this one
        has as many.
        """
        over = self._steps[max(0, min(self._earlier, len(self._steps) - _NEWEST)) :]
        return step_time.per_step(over, coming) if over else self._first_step

    def of_an_evaluation(self, at: float) -> float | None:
        """Return the time of the newest evaluation; None before any.

        Where this session saw none end, it is what a step after one took beyond a step, or follows
        from the rows that are done.
        """
        if self._evaluations:
            return self._evaluations[-1]
        per_step = self.of_a_step()
        if self._with_evaluation and per_step is not None:
            beyond = self._with_evaluation[-1] - per_step
            if beyond > 0:
                return beyond
        for running in self._running.values():
            share = (running.rows - running.before) / self._work.rows
            if share >= _TELLING:
                return (at - running.begun) / share
        return None

    def _rest(self, step: int, whole: float, at: float) -> float:
        """Return the seconds to the end of an evaluation that takes so many as a whole.

        Rows end in bursts: until the next one, which is due when it came in the evaluation before,
        the clock tells more.
        """
        running = self._running.get(step)
        if running is None:
            return whole
        over, due = _times(self._course, running.rows / self._work.rows)
        by_rows = whole * (1 - over)
        by_clock = max(whole * (1 - due), by_rows - (at - running.changed))
        return by_clock if by_clock > 0 else by_rows


def _shares(running: _Measuring, rows: int) -> list[tuple[float, float]]:
    """Return shares of an evaluation's time, and of its rows that were done then."""
    whole = running.changed - running.begun
    if whole <= 0:
        return [*_EVEN]
    return [((at - running.begun) / whole, done / rows) for at, done in running.course]


def _times(course: Sequence[tuple[float, float]], done: float) -> tuple[float, float]:
    """Return the share of the time after which such a share of rows was done, and more were.

    Between two of its points a course is even.
    """
    time, rows = 0.0, 0.0
    for later, more in course:
        if more > done:
            return time + (later - time) * (done - rows) / (more - rows), later
        time, rows = later, more
    return 1.0, 1.0
