"""Checks before a run begins: load a user's scorer in a child process with a deadline."""

from collections.abc import Iterable, Mapping
from typing import Any

from banyan.errors import InvalidInput
from banyan.plugins.filter import EXAMINERS, UNCONFINED, UNCONFINED_GROUPS
from services.chassis.process import settings as settings_reader
from services.verifier.jail.chosen import ChosenJail
from services.verifier.sandbox.confinement import trial
from services.verifier.sandbox.worker import ChildDied, NotStarted, ScorerSpec, Worker
from services.verifier.settings import Settings


def check_confinement(names: Iterable[str]) -> None:
    """Raise InvalidInput if a scorer needs a sandbox that this machine does not have."""
    own = {*UNCONFINED, *UNCONFINED_GROUPS, *EXAMINERS}
    confined = [name for name in names if name not in own]
    if not confined or settings_reader.read(Settings).allow_unconfined_scorers:
        return
    if missing := trial.missing():
        raise InvalidInput(f"scorer {confined[0]!r}: {trial.refusal(missing)}")


async def check_jail(names: Iterable[str]) -> None:
    """Raise InvalidInput if a scorer runs programs and no back end of the jail is sound here."""
    if any(name in EXAMINERS for name in names):
        await describe_jail()


async def describe_jail() -> str:
    """Return the jail's back end and rules. Raise InvalidInput if none is sound."""
    settings = settings_reader.read(Settings)
    jail = ChosenJail(settings.state, sandbox=settings.sandbox)
    try:
        await jail.choose()
        return jail.version
    finally:
        await jail.close()


async def probe(
    name: str,
    settings: Mapping[str, Any],
    row: Mapping[str, Any] | None,
    *,
    group: bool = False,
    unconfined: bool = False,
) -> None:
    """Import a scorer in a child. Raise InvalidInput if that fails, or it cannot take the row."""
    spec = ScorerSpec(name, settings, group, unconfined=unconfined)
    try:
        worker = await Worker.start(spec, settings_reader.read(Settings).limits, row)
    except NotStarted as error:
        raise InvalidInput(f"scorers cannot run: {error}") from None
    except ChildDied as error:
        raise InvalidInput(
            f"scorer {name!r} cannot be loaded: {error};"
            " what does its module do when it is imported?"
        ) from None
    await worker.close()
