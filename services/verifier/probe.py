"""Whether a user's scorer can be loaded and called, found out in a child process with a deadline, before a run is begun."""

from collections.abc import Iterable, Mapping
from typing import Any

from banyan.errors import InvalidInput
from services.chassis.process import settings as reader
from services.verifier.filter import UNCONFINED, UNCONFINED_GROUPS
from services.verifier.sandbox.confinement import trial
from services.verifier.sandbox.worker import ChildDied, ScorerSpec, Worker
from services.verifier.settings import Settings


def check_confinement(names: Iterable[str]) -> None:
    """Raises InvalidInput where one of these scorers needs a sandbox that this machine does not have."""
    needing = [name for name in names if name not in UNCONFINED and name not in UNCONFINED_GROUPS]
    if (
        needing
        and not reader.read(Settings).allow_unconfined_scorers
        and (missing := trial.missing())
    ):
        raise InvalidInput(f"scorer {needing[0]!r}: {trial.refusal(missing)}")


async def probe(
    name: str,
    settings: Mapping[str, Any],
    row: Mapping[str, Any] | None,
    *,
    group: bool = False,
    unconfined: bool = False,
) -> None:
    """Imports a scorer aside. Raises InvalidInput where it cannot be imported, or called with a row like this one."""
    spec = ScorerSpec(name, settings, group, unconfined=unconfined)
    try:
        worker = await Worker.start(spec, reader.read(Settings).limits, row)
    except ChildDied as error:
        raise InvalidInput(
            f"scorer {name!r} cannot be loaded: {error}; what does its module do when it is imported?"
        ) from None
    await worker.close()
