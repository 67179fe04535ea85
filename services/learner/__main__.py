"""`python -m services.learner`: settings first, then the heavy imports."""

import asyncio
import os

from banyan.runtime import garbage, torch_environment


def main() -> None:
    """Run the learner until it is stopped."""
    torch_environment.settle(os.environ)  # before torch
    from services.chassis.process import process
    from services.chassis.process.settings import read
    from services.chassis.process.telemetry import providers
    from services.learner.settings import LearnerSettings

    if _follows():  # it would take the port and the announced address of rank 0
        for variable in (providers.LISTEN, providers.TARGET):
            os.environ.pop(variable, None)

    async def run(stop: asyncio.Event) -> None:
        settings = read(LearnerSettings)
        if _follows():
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


def _follows() -> bool:
    """Return whether this is another rank than 0, started by torchrun or by rank 0."""
    return os.environ.get("RANK", "0") != "0"


if __name__ == "__main__":
    main()
