"""A rank other than 0: it does what rank 0 orders. It knows no store, no broker and no run, and ends with rank 0."""

import asyncio
import contextlib
import logging
import os

from banyan.recipe import Recipe
from services.learner.settings import LearnerSettings
from services.learner.training.distributed.commands import Order, Orders
from services.learner.training.distributed.rank_env import Place, place
from services.learner.training.distributed.thread import Opening
from services.learner.training.distributed.trainer import RankTrainer
from services.learner.training.distributed.rank_group import RankGroup
from services.learner.training.trainer_thread import TorchThread

log = logging.getLogger(__name__)


async def run(settings: LearnerSettings) -> None:
    """Until rank 0 says stop, or is gone. Signals are rank 0's to heed: it may have a checkpoint to write first."""
    at = place(os.environ)
    assert at is not None, "RANK is set"
    await asyncio.to_thread(_serve, settings, at)


def _serve(settings: LearnerSettings, at: Place) -> None:
    world = RankGroup(at, settings.rank_timeout_s, load_s=settings.rank_load_s)
    try:
        _Follower(world, settings).serve()
    except BaseException as error:
        with contextlib.suppress(RuntimeError):  # nobody may be there to hear it
            world.pulse.fail(f"{type(error).__name__}: {error}")
        raise
    finally:
        world.close()


class _Thread(TorchThread):
    """Loads as rank 0 does, in the thread that asks."""

    def __init__(self, world: RankGroup, opening: Opening, threads: int | None) -> None:
        super().__init__(Recipe.model_validate_json(opening.recipe_json), threads)
        self._world, self._local = world, world.local
        self._load(opening.folder, opening.resumed, opening.base)

    def _made(self, *given: object) -> RankTrainer:
        return RankTrainer(self._world, *given)

    def publish(self) -> None:
        """Gives rank 0 this rank's rows of what goes out."""
        with self._world.named("gathering weights"):
            self._published()


class _Follower:
    def __init__(self, world: RankGroup, settings: LearnerSettings) -> None:
        self._world, self._settings, self._orders = world, settings, Orders(world)
        self._thread: _Thread | None = None

    def serve(self) -> None:
        """Order after order."""
        while (order := self._orders.take()) is not Order.STOP:
            self._obey(order)
        log.info("rank %d: rank 0 is done", self._world.rank)

    def _obey(self, order: Order) -> None:
        if order is Order.LOAD:
            opening = self._orders.told()
            self._world.pulse.at("loading the model")
            self._thread = _Thread(self._world, opening, self._settings.threads)
            return self._orders.meet()
        assert self._thread is not None, "load comes first"
        trainer = self._thread.trainer
        assert isinstance(trainer, RankTrainer)
        if order is Order.STEP:
            trainer.step(*self._orders.told())
        elif order is Order.PUBLISH:
            self._thread.publish()
        elif order is Order.KEEP:
            trainer.exact()
            trainer.moments()
        elif order is Order.DRIFT:
            trainer.drift(self._orders.told())
        elif order is Order.CANARY:
            trainer.canary(self._thread.dtype_name)
