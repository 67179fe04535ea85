"""Whether a learner has ranks, and how they came to be: by torchrun, or started here as the recipe asks."""

import os

from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from services.chassis.process.cores import CoreShare
from services.learner.settings import LearnerSettings
from services.learner.training.distributed.rank_env import Place, place
from services.learner.training.trainer_thread import TorchThread


def torch_thread(recipe: Recipe, settings: LearnerSettings) -> TorchThread:
    """The torch thread of this learner; of rank 0, with the others joined. Raises InvalidInput, RankLost."""
    wanted = recipe.resources.learner_ranks
    at = place(os.environ)
    started = at.size if at is not None else 1
    if started == 1 and wanted == 1:
        return TorchThread(
            recipe, settings.threads, CoreShare(settings.threads_file, settings.threads)
        )
    if started > 1 and recipe.deterministic and started != wanted:
        raise InvalidInput(
            f"torchrun started {started} ranks; a deterministic run has those that its recipe names, "
            f"resources.learner_ranks: {wanted}"
        )
    return _of_ranks(recipe, settings, at if started > 1 else None)


def _of_ranks(recipe: Recipe, settings: LearnerSettings, at: Place | None) -> TorchThread:
    from services.learner.training.distributed.workers import Workers
    from services.learner.training.distributed.commands import Orders
    from services.learner.training.distributed.thread import RankThread
    from services.learner.training.distributed.rank_group import RankGroup

    if at is not None:
        return RankThread(
            recipe,
            settings.threads,
            Orders(RankGroup(at, settings.rank_timeout_s, load_s=settings.rank_load_s)),
        )
    wanted = recipe.resources.learner_ranks
    threads = max(1, (settings.threads or os.cpu_count() or 1) // wanted)
    crew = Workers(wanted, threads)
    try:
        world = RankGroup(
            Place(0, wanted), settings.rank_timeout_s, crew.store, crew.look, settings.rank_load_s
        )
        return RankThread(recipe, threads, Orders(world), crew)
    except BaseException:
        crew.end()
        raise
