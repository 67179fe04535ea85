"""Live view of a run: step, reward curve, tokens sampled and saved, members, time left."""

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from banyan.cli.render import plain_data
from banyan.cli.render.console import out
from banyan.recipe import Recipe
from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs

_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 48


def curve(values: Sequence[float]) -> str:
    """Return values as a line of block characters.

    The scale is 0 to 1, or the range of the values if they lie beyond.
    """
    low, high = min(0.0, *values, 0.0), max(1.0, *values, 1.0)
    return "".join(_BARS[min(7, int((value - low) / (high - low) * 8))] for value in values)


def _result(message: rs.EvalProgress) -> str:
    """Return an evaluation's label and result: accuracy, or the mean reward of graded answers."""
    found = plain_data.evaluation(message)
    if found["accuracy"] is None:
        return f"{message.label}: no row could be scored"
    if plain_data.graded(message):
        return f"{message.label}: mean reward {found['mean_reward']:.3f}"
    return f"{message.label}: {100 * found['accuracy']:.1f} %"


class LiveView:
    """View of WatchRun's messages: a panel on a terminal, else one line per step, evaluation and
    phase.

    resumed: whether the first message contains earlier steps, which were printed before
    """

    def __init__(self, recipe: Recipe, resumed: bool = False) -> None:
        self._recipe = recipe
        self._silent = resumed
        # A restarted gateway sends everything once more.
        self._seen: set[tuple[int, int]] = set()
        self._measured: set[str] = set()  # labels of evaluations
        self._news = gw.WatchRunResponse()
        self._rewards: deque[float] = deque(maxlen=_CURVE)
        self._reward = "-"  # of the last batch
        self._begun = time.monotonic()
        self._training_from: tuple[float, int] | None = None  # when, and at which step
        self._phase = ""
        self._terminal = out.is_terminal
        self._live = (
            Live(console=out, auto_refresh=False, transient=True) if self._terminal else None
        )

    def __enter__(self) -> "LiveView":
        if self._live:
            self._live.start()
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
        if self._training_from is None and news.run.state == rs.RUN_STATE_TRAINING:
            self._training_from = time.monotonic(), news.progress.step
        for policy in news.policies:
            self._note(policy)
        self._note_evaluations()
        self._silent = False
        phase = plain_data.run_state(news.run.state)
        if not self._terminal and phase != self._phase:
            out.print(
                f"[{self._elapsed():6.1f} s] {phase.lower().replace('_', ' ')}",
                markup=False,
                soft_wrap=True,
            )
        self._phase = phase
        if self._live:
            self._live.update(self._panel(), refresh=True)

    def _note(self, policy: events_pb2.PolicyPublished) -> None:
        version = policy.policy.learner_epoch, policy.policy.step
        if not policy.metrics or version in self._seen:
            return  # the base model, a repetition by a restarted learner, or a duplicate
        repeated = policy.policy.step in {step for _, step in self._seen}
        self._seen.add(version)
        self._reward = f"{policy.metrics['reward']:.3f}" if "reward" in policy.metrics else "-"
        if "reward" in policy.metrics:
            self._rewards.append(policy.metrics["reward"])
        if not self._terminal and not self._silent:
            out.print(self._line(policy, repeated), markup=False, soft_wrap=True)

    def _note_evaluations(self) -> None:
        """Print the evaluations that are over, once each."""
        rows = min(len(self._news.run.held_out), self._recipe.eval.max_rows)
        for measured in self._news.progress.evals:
            over = measured.groups >= rows and measured.done >= rows
            if measured.label in self._measured or not rows or not over:
                continue
            self._measured.add(measured.label)
            if not self._terminal and not self._silent:
                line = f"[{self._elapsed():6.1f} s] {_result(measured)}"
                out.print(line, markup=False, soft_wrap=True)

    def _line(self, policy: events_pb2.PolicyPublished, repeated: bool) -> str:
        """Return the line of a step.

        again: whether a restarted learner repeats it, training on the batches after its checkpoint
        """
        samples = self._news.progress.samples
        return (
            f"[{self._elapsed():6.1f} s] step "
            f"{policy.policy.step:>3}/{self._recipe.budget.steps}{' again' if repeated else ''}  "
            f"reward {self._reward}  sampled {samples.sampled_tokens:,}  saved "
            f"{plain_data.saved_tokens(samples):,}  members "
            f"{plain_data.present(self._news.members)}  left {self._left()}"
        )

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _left(self) -> str:
        done = self._news.progress.step
        if self._training_from is None or done <= self._training_from[1]:
            return "?"
        begun, first = self._training_from
        per_step = (time.monotonic() - begun) / (done - first)
        return f"{per_step * max(0, self._recipe.budget.steps - done):.0f} s"

    def _panel(self) -> Group:
        progress = self._news.progress
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
        return Group(
            head, facts, reward, ProgressBar(total=steps, completed=progress.step, width=60)
        )
