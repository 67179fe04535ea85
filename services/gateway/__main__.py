"""`python -m services.gateway`: settings, then what is heavy, then run."""

import asyncio

from services.chassis.process import process, settings
from services.gateway.settings import Settings


async def run(stop: asyncio.Event) -> None:
    """Serves until stopped."""
    told = settings.read(Settings)
    from services.gateway import service

    await service.run(told, stop)


if __name__ == "__main__":
    process.main("gateway", run)
