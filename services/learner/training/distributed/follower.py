"""A rank other than 0: it executes the commands of rank 0.

It knows no store, no broker and no run, and ends with rank 0.
"""

import asyncio
import contextlib
import logging
import os

from banyan.recipe import Recipe
from services.learner.settings import LearnerSettings
from services.learner.training.distributed.commands import Command, CommandChannel
from services.learner.training.distributed.rank_env import RankPlace, read_rank
from services.learner.training.distributed.rank_group import RankGroup
from services.learner.training.distributed.thread import Opening
from services.learner.training.distributed.trainer import RankTrainer
from services.learner.training.trainer_thread import TorchThread

log = logging.getLogger(__name__)


async def run(settings: LearnerSettings) -> None:
    """Follow rank 0 until it sends STOP or is lost.

    Signals are handled by rank 0 alone: it may have a checkpoint to write first.
    """
    place = read_rank(os.environ)
    assert place is not None, "RANK is set"
    await asyncio.to_thread(_serve, settings, place)


def _serve(settings: LearnerSettings, place: RankPlace) -> None:
    rank_group = RankGroup(place, settings.rank_timeout_s, load_s=settings.rank_load_s)

    def publish(kind: object, error: BaseException | None, place: object) -> None:
        if error is not None:  # whatever ends this rank, the others learn its cause
            with contextlib.suppress(RuntimeError):  # the store may be gone
                rank_group.heartbeat.publish_failure(f"{type(error).__name__}: {error}")

    with contextlib.ExitStack() as stack:
        stack.callback(rank_group.close)
        stack.push(publish)
        _Follower(rank_group, settings).serve()


class _Thread(TorchThread):
    """The torch side of a follower, which runs in the thread that calls it."""

    def __init__(self, rank_group: RankGroup, opening: Opening, threads: int | None) -> None:
        super().__init__(Recipe.model_validate_json(opening.recipe_json), threads)
        self._rank_group, self._local = rank_group, rank_group.local
        self._load(opening.folder, opening.resumed, opening.base)

    def _make_trainer(self, *arguments: object) -> RankTrainer:
        return RankTrainer(self._rank_group, *arguments)

    def publish(self) -> None:
        """Send this rank's rows of the published weights to rank 0."""
        with self._rank_group.guarded("gathering weights"):
            self._published()


class _Follower:
    def __init__(self, rank_group: RankGroup, settings: LearnerSettings) -> None:
        self._rank_group, self._settings = rank_group, settings
        self._commands = CommandChannel(rank_group)
        self._thread: _Thread | None = None

    def serve(self) -> None:
        """Execute commands until STOP."""
        while (command := self._commands.receive()) is not Command.STOP:
            self._execute(command)
        log.info("rank %d: rank 0 is done", self._rank_group.rank)

    def _execute(self, command: Command) -> None:
        if command is Command.LOAD:
            opening = self._commands.receive_part()
            self._rank_group.heartbeat.set_activity("loading the model")
            self._thread = _Thread(self._rank_group, opening, self._settings.threads)
            return self._commands.meet()
        assert self._thread is not None, "load comes first"
        trainer = self._thread.trainer
        assert isinstance(trainer, RankTrainer)
        if command is Command.STEP:
            trainer.step(*self._commands.receive_part())
        elif command is Command.PUBLISH:
            self._thread.publish()
        elif command is Command.KEEP:
            trainer.exact()
            trainer.moments()
        elif command is Command.DRIFT:
            trainer.drift(self._commands.receive_part())
        elif command is Command.CANARY:
            trainer.canary(self._thread.dtype_name)
