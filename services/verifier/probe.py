"""Whether a user's scorer can be loaded and called, found out in a child process with a deadline, before a run is begun."""

from collections.abc import Mapping
from typing import Any

from banyan.errors import InvalidInput
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.worker import ChildDied, ScorerSpec, Worker


async def probe(name: str, settings: Mapping[str, Any], row: Mapping[str, Any] | None, *, group: bool = False) -> None:
    """Imports a scorer aside. Raises InvalidInput where it cannot be imported, or called with a row like this one."""
    try:
        worker = await Worker.start(ScorerSpec(name, settings, group), Limits(), row)
    except ChildDied as error:
        raise InvalidInput(
            f"scorer {name!r} cannot be loaded: {error}; what does its module do when it is imported?"
        ) from None
    await worker.close()
