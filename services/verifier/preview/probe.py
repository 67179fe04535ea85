"""Checks before a run begins: load a user's scorer in a child process, and call it if wanted."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from banyan.errors import InvalidInput
from banyan.plugins import Row, Scored, Unscorable
from banyan.plugins.ask import ASKERS
from banyan.plugins.filter import EARNINGS, EXAMINERS, UNCONFINED, UNCONFINED_GROUPS
from banyan.recipe import Filter
from services.chassis.process import settings as settings_reader
from services.verifier.jail.chosen import ChosenJail
from services.verifier.preview.own_scorers import check_row, no_score
from services.verifier.sandbox import ends
from services.verifier.sandbox.allowed import grants
from services.verifier.sandbox.confinement import trial
from services.verifier.sandbox.outcomes import outcomes
from services.verifier.sandbox.worker import ChildDied, NotStarted, ScorerSpec, Worker
from services.verifier.settings import Settings

_SAMPLES = ("The answer is 42.", "I do not know.")


def check_confinement(names: Iterable[str]) -> None:
    """Raise InvalidInput if a scorer needs a sandbox that this machine does not have."""
    own = {*UNCONFINED, *UNCONFINED_GROUPS, *EXAMINERS, *ASKERS, *EARNINGS}
    confined = [name for name in names if name not in own]
    if not confined or settings_reader.read(Settings).allow_unconfined_scorers:
        return
    if missing := trial.missing():
        raise InvalidInput(f"scorer {confined[0]!r}: {trial.refusal(missing)}")


def check_ceilings(specs: Iterable[ScorerSpec]) -> None:
    """Raise InvalidInput if a scorer asks for more than this machine's verifier allows."""
    ceilings = settings_reader.read(Settings).ceilings
    for spec in specs:
        ceilings.check(spec)


def check_grants(scorers: Iterable[Filter]) -> None:
    """Raise InvalidInput if a scorer asks for the network or for secrets that are not allowed."""
    settings = settings_reader.read(Settings)
    for scorer in scorers:
        label = f"scorer {scorer.name!r}"
        grants.check_network(label, asked=scorer.network, allowed=settings.sandbox_network)
        grants.secrets(label, scorer.secrets, settings.secret_names)


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


def check_own(scorers: Iterable[Filter], row: Row) -> None:
    """Raise InvalidInput if a scorer of Banyan's own has no score for a row, whatever is said."""
    for scorer in scorers:
        check_row(scorer.name, scorer.settings, row, _SAMPLES[0])


async def probe(
    name: str,
    settings: Mapping[str, Any],
    row: Row | None,
    *,
    group: bool = False,
    unconfined: bool = False,
    called: bool = False,
    secrets: Sequence[str] = (),
    network: bool = False,
) -> None:
    """Import a scorer in a child. Raise InvalidInput if that fails, or it cannot take the row.

    called: call it once on a sample completion of the row, too. Raise InvalidInput without a score.
    """
    spec = ScorerSpec(
        name, settings, group, unconfined=unconfined, network=network, secrets=tuple(secrets)
    )
    limits = settings_reader.read(Settings).limits
    try:
        worker = await Worker.start(spec, limits, row)
    except NotStarted as error:
        raise InvalidInput(f"scorers cannot run: {error}") from None
    except ChildDied as error:
        raise InvalidInput(
            f"scorer {name!r} cannot be loaded: {error};"
            " what does its module do when it is imported?"
        ) from None
    try:
        if called and row is not None:
            await _call(worker, spec, row, limits.deadline_s)
    finally:
        await worker.close()


async def _call(worker: Worker, spec: ScorerSpec, row: Row, deadline_s: float) -> None:
    """Call a scorer once. Raise InvalidInput without a score."""
    asked = {"completions": list(_SAMPLES)} if spec.group else {"completion": _SAMPLES[0]}
    try:
        answer = await worker.score({**asked, "row": dict(row)})
    except ChildDied as error:
        end: ends.End | None = ends.lost(str(error))
    else:
        end = ends.parsed(answer, deadline_s)
    if end is not None:
        result: Scored | Unscorable = Unscorable(end.reason)
    else:
        result = outcomes(answer, len(_SAMPLES) if spec.group else 1, spec.name)[0]
    if isinstance(result, Unscorable):
        raise InvalidInput(no_score(spec.name, _SAMPLES[0], row, result))
