"""The start of a learner's torch thread: alone, of ranks that torchrun started, or with workers."""

import os
from contextlib import ExitStack

from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from services.chassis.process.cores import CoreShare
from services.learner.settings import LearnerSettings
from services.learner.training.distributed.rank_env import RankPlace, read_rank
from services.learner.training.trainer_thread import TorchThread


def torch_thread(recipe: Recipe, settings: LearnerSettings) -> TorchThread:
    """Return the torch thread of this learner; for rank 0, with the other ranks joined.

    Raises InvalidInput where torchrun's number of ranks contradicts a deterministic recipe, and
    RankLost where a rank does not come.
    """
    wanted = recipe.resources.learner_ranks
    place = read_rank(os.environ)
    started = place.size if place is not None else 1
    if started == 1 and wanted == 1:
        share = CoreShare(settings.threads_file, settings.threads)
        return TorchThread(recipe, settings.threads, share)
    if started > 1 and recipe.deterministic and started != wanted:
        raise InvalidInput(
            f"torchrun started {started} ranks; a deterministic run has those that its recipe"
            f" names, resources.learner_ranks: {wanted}"
        )
    return _of_ranks(recipe, settings, place if started > 1 else None)


def _of_ranks(recipe: Recipe, settings: LearnerSettings, place: RankPlace | None) -> TorchThread:
    from services.learner.training.distributed.commands import CommandChannel
    from services.learner.training.distributed.rank_group import RankGroup
    from services.learner.training.distributed.thread import RankThread
    from services.learner.training.distributed.workers import Workers

    timeout_s, load_s = settings.rank_timeout_s, settings.rank_load_s
    if place is not None:
        rank_group = RankGroup(place, timeout_s, load_s=load_s)
        return RankThread(recipe, settings.threads, CommandChannel(rank_group))
    size = recipe.resources.learner_ranks
    threads = max(1, (settings.threads or os.cpu_count() or 1) // size)
    workers = Workers(size, threads)
    with ExitStack() as undo:
        undo.callback(workers.end)  # also when interrupted: no worker outlives a failed start
        rank_group = RankGroup(
            RankPlace(0, size), timeout_s, workers.store, check=workers.check, load_s=load_s
        )
        thread = RankThread(recipe, threads, CommandChannel(rank_group), workers)
        undo.pop_all()
    return thread
