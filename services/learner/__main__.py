"""`python -m services.learner`: settings first, then what is heavy."""

import asyncio
import os

from banyan.runtime import torch_environment


def main() -> None:
    """Runs the learner until it is told to stop."""
    torch_environment.settle(os.environ)  # before torch
    from services.chassis.process import process
    from services.chassis.process.settings import read
    from services.learner.settings import LearnerSettings

    async def run(stop: asyncio.Event) -> None:
        settings = read(LearnerSettings)
        if os.environ.get("RANK", "0") != "0":  # torchrun, or rank 0, started this one
            from services.learner.training.distributed import follower

            return await follower.run(settings)
        if (
            settings.ranks == 1 and os.environ.get("WORLD_SIZE", "1") == "1"
        ):  # ranks share the cores
            torch_environment.bind(os.environ, settings.threads)
        from services.learner import service

        torch_environment.roam()
        await service.run(settings, stop)

    process.main("learner", run)


if __name__ == "__main__":
    main()
