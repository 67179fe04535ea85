"""`banyan.train`: what `banyan train` does, called from a script or a notebook."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from banyan.cli.train import scorer_checks, search_path
from banyan.cli.train.from_python.composed import compose
from banyan.cli.train.from_python.keywords import check_keywords
from banyan.cli.train.from_python.reward import Reward
from banyan.cli.train.from_python.rows import Rows
from banyan.cli.train.session import INTERRUPTED, Session
from banyan.client import connecting
from banyan.errors import RunEnded
from banyan.recipe import Recipe
from banyan.stored.run import Run
from banyan.stored.store import lazily_opened
from banyan.v1 import runstore_service_pb2 as rs

_TURN_S = 0.5  # between looks at the work, so that signals are heard
_MOST = 2  # interrupts that are heard: the first pauses, the second kills


def train(
    recipe: str | Path | Recipe | Mapping[str, Any] | None = None,
    *,
    dataset: Rows | None = None,
    reward: Reward | None = None,
    state: str | Path | None = None,
    listen: str = "",
    **keys: Any,
) -> Run:
    """Train a recipe with all services on this machine, and return the run once it SUCCEEDED.

    A terminal shows the live view of `banyan train`; elsewhere, as in a notebook, a line is printed
    for each step. Ctrl-C pauses the run with a checkpoint, ends all services and then raises
    KeyboardInterrupt; a second one ends them at once.

        def right(completion, answer, **row):
            return float(answer in completion)

        rows = [{"prompt": "What is 2 + 3?", "answer": "5"}, …]
        run = banyan.train(dataset=rows, reward=right, steps=20)
        run.frame().reward.plot()

    recipe: name or file of a recipe, or its data; None for each key's default (docs/recipe.md) and
        a model of 135 million weights
    dataset: rows as dictionaries with a `prompt` and whatever the reward needs, prompts as texts, a
        data frame, or the path of a file or `hf://…`; replaces the recipe's task
    reward: `def reward(completion, **row) -> float`, of a module, a script or a notebook's cell, or
        the name of a scorer; replaces the recipe's `filter`
    state: state folder; None for BANYAN_STATE or `.banyan`
    listen: host:port at which nodes of other machines may join
    keys: keys of the recipe, such as model="…", generate={"settings": {"width": 8}}; `steps` and
        `minutes` are those of its budget

    Raises InvalidInput before anything starts for a recipe, row or reward that cannot work,
    RunEnded if the run fails or is cancelled or paused from elsewhere, and other BanyanErrors.
    """
    check_keywords(keys)
    folder = connecting.default_state() if state is None else Path(state)
    work = _Work(recipe, dataset, reward, keys, folder, listen)
    thread = threading.Thread(target=work.do, name="banyan-train", daemon=True)
    thread.start()
    _attend(work)
    return _result(work, folder)


def _result(work: "_Work", folder: Path) -> Run:
    """Return the run of work that is over, or raise why there is none."""
    if work.failure is not None:
        raise work.failure
    if work.status == INTERRUPTED or work.ended is None:
        raise KeyboardInterrupt
    run = Run.of(work.ended, lazily_opened(folder))
    if run.state != "SUCCEEDED":
        cause = f": {run.cause}" if run.cause else ""
        raise RunEnded(
            f"{run.run_id} {run.state} at step {run.step}{cause}; logs are in {folder / 'logs'}",
            run_id=run.run_id,
            state=run.state,
        )
    return run


class _Work:
    """The work of a call, for a thread that has an event loop of its own.

    A notebook runs a loop in the thread that calls. `over` is set at the end; then `failure`, or
    `status` and the run's last message `ended`, are the outcome.
    """

    def __init__(
        self,
        recipe: str | Path | Recipe | Mapping[str, Any] | None,
        dataset: Rows | None,
        reward: Reward | None,
        keys: Mapping[str, Any],
        state: Path,
        listen: str,
    ) -> None:
        self._arguments = recipe, dataset, reward, keys
        self._state, self._listen = state, listen
        self._session: Session | None = None
        self._interrupted = False
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self.status = INTERRUPTED
        self.ended: rs.Run | None = None

    def do(self) -> None:
        """Check the inputs, then run the system until the run is over."""
        try:
            self._do()
        except BaseException as error:  # raised again in the thread that called
            self.failure = error
        finally:
            self.over.set()

    def interrupt(self) -> None:
        """Stop the run; if called again, at once."""
        self._interrupted = True
        if self._session is not None:
            self._session.interrupt()

    def _do(self) -> None:
        from banyan.cli.train import inputs
        from services.supervisor.state import StateFolder

        StateFolder.open(self._state)  # refuses a folder that is no state folder, before it writes
        composed = compose(*self._arguments, self._state)
        folders = list(composed.folders)
        inputs.check_listen(composed.recipe, self._listen)
        scorer_checks.check(composed.recipe, folders, called=True)
        inputs.prepare(composed.recipe)
        if self._interrupted:
            return
        path = search_path.remembered(self._state, folders)
        self._session = Session(
            self._state, composed.recipe, self._listen, path, handles_signals=False
        )
        self.status = asyncio.run(self._session.run())
        self.ended = self._session.ended


def _attend(work: _Work) -> None:
    """Wait until the work is over."""
    with _heard(work):
        # An interrupted `join` would take the thread for ended.
        while not work.over.wait(_TURN_S):
            pass


@contextlib.contextmanager
def _heard(work: _Work) -> Iterator[None]:
    """Pass Ctrl-C on to the work. The third one leaves it: it then ends with this process.

    By a handler of its own: within an event loop that runs, Python's would only cancel a task. It
    is not heard outside of the main thread, nor where the caller ignores it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    count = 0

    def hear(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        work.interrupt()
        if count > _MOST:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
