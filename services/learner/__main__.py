"""`python -m services.learner`: settings first, then the heavy imports."""

import asyncio
import os

from banyan.runtime import garbage, torch_environment


def main() -> None:
    """Run the learner until it is stopped."""
    torch_environment.settle(os.environ)  # before torch
    from services.chassis.process import process
    from services.chassis.process.settings import read
    from services.learner.settings import LearnerSettings

    async def run(stop: asyncio.Event) -> None:
        settings = read(LearnerSettings)
        if os.environ.get("RANK", "0") != "0":  # started by torchrun or by rank 0
            with garbage.paused():
                from services.learner.training.distributed import follower

            return await follower.run(settings)
        if settings.ranks == 1 and os.environ.get("WORLD_SIZE", "1") == "1":
            # Several ranks share the cores, and are bound to none.
            torch_environment.bind(os.environ, settings.threads)
        with garbage.paused():
            from services.learner import service

        torch_environment.roam()
        await service.run(settings, stop)

    process.main("learner", run)


if __name__ == "__main__":
    main()
