"""Entry point (`python -m services.gateway`): settings first, then heavy imports, then run."""

import asyncio

from services.chassis.process import process, settings
from services.gateway.settings import Settings


async def run(stop: asyncio.Event) -> None:
    """Serve until `stop` is set."""
    configured = settings.read(Settings)
    from services.gateway import service

    await service.run(configured, stop)


if __name__ == "__main__":
    process.main("gateway", run)
