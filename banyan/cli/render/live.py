"""Live view of a run: step, reward curve, tokens sampled and saved, members, time left."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from banyan.cli.render.console import out
from banyan.cli.render.curve import curve
from banyan.cli.runs import measurements
from banyan.progress import run_status
from banyan.progress.time_left import Pace
from banyan.recipe import Recipe
from banyan.runtime.waiting import QUIET_S, TICK_S
from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

_CURVE = 48


def _result(message: rs.EvalProgress, graded: bool) -> str:
    """Return an evaluation's label and result: accuracy, or the mean reward of graded answers."""
    found = list(measurements.lines(message))
    if not message.scored:
        return f"{message.label}: no row could be scored"
    words = [f"mean reward {one.reward}" if graded else one.share for _, one in found]
    if len(found) > 1:  # votes, which name what they are of
        words = [
            f"{name.rpartition(', ')[2]} {word}"
            for (name, _), word in zip(found, words, strict=True)
        ]
    return f"{message.label}: {', '.join(words)}{_unscorable(message.unscorable)}"


def _unscorable(leaves: int) -> str:
    """Return how many leaves could not be scored; empty if all were."""
    return f"  unscorable {leaves:,}" if leaves else ""


@dataclass(frozen=True, slots=True)
class Past:
    """A run before this session.

    policies: its policies.
    lived_s: seconds that it took, without pauses.
    """

    policies: Sequence[rs.StoredPolicy] = ()
    lived_s: float = 0.0


class LiveView:
    """View of WatchRun's messages: a panel on a terminal, else one line per step, evaluation and
    phase, and one that says what is under way after ten seconds without any.

    past: the run before this session; None if it begins with it. The first message contains the
        earlier steps again, which were printed then.
    processes: returns the run's processes that do not serve yet; empty if all do.
    """

    def __init__(
        self,
        recipe: Recipe,
        past: Past | None = None,
        *,
        processes: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recipe, self._processes, self._clock = recipe, processes, clock
        self._silent = past is not None
        self._past = past or Past()
        # A restarted gateway sends everything once more.
        self._seen: set[tuple[int, int]] = set()
        self._measured: set[str] = set()  # labels of evaluations
        self._news = gw.WatchRunResponse()
        self._rewards: deque[float] = deque(maxlen=_CURVE)
        self._reward = "-"  # of the last batch
        self._begun = self._printed = clock()
        self._pace: Pace | None = None
        self._phase = ""
        self._terminal = out.is_terminal
        self._live = (
            Live(console=out, auto_refresh=False, transient=True) if self._terminal else None
        )

    def __enter__(self) -> "LiveView":
        if self._live:
            self._live.start()
            self.tick()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, news: gw.WatchRunResponse) -> None:
        """Show the next message."""
        self._news = news
        self._pace = pace = self._pace or self._new_pace()
        phase = plain_data.run_state(news.run.state)
        if phase != self._phase and news.run.state == rs.RUN_STATE_TRAINING and not self._silent:
            pace.begin(self._clock())
        for policy in news.policies:
            self._note(policy, pace)
        self._note_evaluations(pace)
        self._silent = False
        if not self._terminal and phase != self._phase:
            self._print(phase.lower().replace("_", " "))
        self._phase = phase
        if self._live:
            self._live.update(self._panel(), refresh=True)

    def pause(self) -> float:
        """Return the seconds until `tick` has something to show."""
        if self._live:
            return TICK_S
        return max(0.0, self._printed + QUIET_S - self._clock())

    def tick(self) -> None:
        """Show the time that has passed, if it is due."""
        if self._live:
            self._live.update(self._panel(), refresh=True)
        elif self._clock() - self._printed >= QUIET_S:
            left = self._left()
            self._print(f"{self._status().words}{'' if left == '?' else f'  left {left}'}")

    def _new_pace(self) -> Pace:
        pace = Pace(run_status.work_of(self._recipe, self._news.run))
        ago = self._clock() - time.time()
        for stored in self._past.policies:
            _time(pace, stored.published, stored.stored_unix_ms / 1000 + ago)
        pace.begin(None)
        return pace

    def _note(self, policy: events_pb2.PolicyPublished, pace: Pace) -> None:
        version = policy.policy.learner_epoch, policy.policy.step
        if version in self._seen:
            return
        if not self._silent:
            _time(pace, policy, self._clock())
        if not policy.metrics:
            return  # the base model, or a repetition by a restarted learner
        repeated = policy.policy.step in {step for _, step in self._seen}
        self._seen.add(version)
        self._reward = f"{policy.metrics['reward']:.3f}" if "reward" in policy.metrics else "-"
        if "reward" in policy.metrics:
            self._rewards.append(policy.metrics["reward"])
        if not self._terminal and not self._silent:
            self._print(self._line(policy, repeated))

    def _note_evaluations(self, pace: Pace) -> None:
        """Note the evaluations, and print those that are over, once each."""
        rows = run_status.measured_rows(self._recipe, self._news.run)
        for step, done in run_status.rows_done(self._recipe, self._news).items():
            if done or self._news.progress.growing_nodes:
                pace.evaluation(step, done, self._clock())
        for measured in self._news.progress.evals:
            over = measured.groups >= rows and measured.done >= rows
            if measured.label in self._measured or not rows or not over:
                continue
            self._measured.add(measured.label)
            if not self._terminal and not self._silent:
                self._print(_result(measured, plain_data.graded(self._news.progress.evals)))

    def _line(self, policy: events_pb2.PolicyPublished, repeated: bool) -> str:
        """Return the line of a step.

        repeated: whether a restarted learner trains on the batches after its checkpoint again
        """
        samples = self._news.progress.samples
        return (
            "step "
            f"{policy.policy.step:>3}/{self._recipe.budget.steps}{' again' if repeated else ''}  "
            f"reward {self._reward}  sampled {samples.sampled_tokens:,}  saved "
            f"{plain_data.saved_tokens(samples):,}  members "
            f"{plain_data.present(self._news.members)}{_unscorable(samples.unscorable)}  left "
            f"{self._left()}"
        )

    def _print(self, words: str) -> None:
        self._printed = self._clock()
        out.print(f"[{self._elapsed():6.1f} s] {words}", markup=False, soft_wrap=True)

    def _elapsed(self) -> float:
        return self._clock() - self._begun

    def _left(self) -> str:
        if self._pace is None:
            return "?"
        step = run_status.newest_step(self._recipe, self._news)
        lived = self._past.lived_s + self._elapsed()
        left = self._pace.left(step, self._clock(), lived)
        return "?" if left is None else f"{left:.0f} s"

    def _status(self) -> run_status.Status:
        return run_status.status(self._recipe, self._news, self._processes)

    def _panel(self) -> Group:
        progress, status = self._news.progress, self._status()
        facts = Table.grid(padding=(0, 2))
        samples, steps = progress.samples, self._recipe.budget.steps
        facts.add_row(
            "phase", self._phase.lower().replace("_", " "), "step", f"{progress.step} of {steps}"
        )
        facts.add_row(
            "tokens sampled",
            f"{samples.sampled_tokens:,}",
            "saved by the tree",
            f"{plain_data.saved_tokens(samples):,}",
        )
        facts.add_row(
            "members", str(plain_data.present(self._news.members)), "time left", self._left()
        )
        facts.add_row("leaves", f"{samples.leaves:,}", "unscorable", f"{samples.unscorable:,}")
        reward = Text.assemble(
            ("reward ", "bold"), (curve(list(self._rewards)), "green"), f" {self._reward}"
        )
        head = Text.assemble((self._news.run.run_id, "bold cyan"), f"  {self._elapsed():.0f} s")
        bar = ProgressBar(total=status.wanted or None, completed=status.done, width=60)
        return Group(head, facts, reward, Text(status.words), bar)


def _time(pace: Pace, published: events_pb2.PolicyPublished, at: float) -> None:
    """Note the time of a step. Repetitions by a restarted learner, without metrics, are faster."""
    policy = published.policy
    if published.metrics or not policy.step:
        tokens = published.metrics.get("packed_tokens", 0.0)
        pace.step(policy.learner_epoch, policy.step, at, tokens)
