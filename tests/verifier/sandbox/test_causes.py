"""Answers that hang, eat memory, kill their scorer: a number with the cause, in real children."""

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from banyan.plugins import Scored, Unscorable
from banyan.programs.run import Outcome
from services.verifier.sandbox import causes
from services.verifier.sandbox.confinement.processes import Ended
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec

CAUSES = {
    "spins": "cpu",
    "spins_in_a_child": "cpu",
    "prints_endlessly": "cpu",
    "eats": "memory",
    "exits": "exited",
    "vanishes": "exited",
    "crashes": "crashed",
    "aborts": "crashed",
    "kills_itself": "crashed",
    "forks": "processes",
    "forks_and_waits": "processes",
    "writes_endlessly": "disk",
    "floods_its_channel": "output",
}
LIMITS = Limits(deadline_s=0.5, memory_mb=256, file_mb=4)


async def scored(function: str, *completions: str) -> list[Scored | Unscorable]:
    pool = Pool(LIMITS)
    try:
        spec = ScorerSpec(f"deeds:{function}", {})
        return [(await pool.score(spec, word, {})).outcome for word in completions]
    finally:
        await pool.close()


async def test_what_an_answer_causes_is_a_wrong_answer_with_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each in real children, some until their deadline: some 6 s in all."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    words = [*CAUSES, "is_wrong", "is_right"]
    found = dict(zip(words, await scored("deed", *words), strict=True))
    assert found.pop("is_right") == Scored(1.0) and found.pop("is_wrong") == Scored(0.0)
    assert found == {word: Scored(0.0, {cause: 1.0}) for word, cause in CAUSES.items()}


async def test_where_wrong_answers_cost_something_so_do_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    found = await scored("penalised", "is_wrong", "vanishes")
    assert found == [Scored(-1.0), Scored(-1.0, {"exited": 1.0})]


async def test_what_the_system_or_the_scorer_causes_is_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    slept, raised = await scored("deed", "sleeps", "raises")
    assert slept == Unscorable(
        "TIMEOUT: no answer in 0.5 s, with processor time left; tried 2 times",
        retry=True,
    )
    assert raised == Unscorable(
        "EXCEPTION: ValueError: cannot be read (deeds.py, line 35, in raises)"
    )


def ended(*, signal: int = 0, count: int = 1, cpu_s: float = 0.0, peak_mb: int = 0) -> Ended:
    return Ended(signal, count, clean=True, cpu_s=cpu_s, peak_mb=peak_mb)


@pytest.mark.parametrize(
    ("seen", "end", "cause"),
    [
        (Outcome.WALL, ended(cpu_s=0.24), Outcome.WALL),
        (Outcome.WALL, ended(cpu_s=0.25), Outcome.CPU),
        (Outcome.WALL, ended(count=31), Outcome.WALL),
        (Outcome.WALL, ended(count=32, cpu_s=0.25), Outcome.PROCESSES),
        (Outcome.PROCESSES, ended(count=31), Outcome.LOST),
        (Outcome.PROCESSES, ended(count=32), Outcome.PROCESSES),
        (Outcome.MEMORY, ended(signal=9), Outcome.MEMORY),
        (None, ended(), Outcome.EXITED),
        (None, ended(signal=9), Outcome.SIGNALLED),
        (None, ended(signal=9, peak_mb=1 << 20), Outcome.MEMORY),
        (None, ended(signal=24), Outcome.CPU),
        (None, ended(signal=25), Outcome.DISK),
        (None, ended(signal=11), Outcome.SIGNALLED),
        (None, ended(signal=40), Outcome.SIGNALLED),
    ],
)
def test_from_half_of_a_limit_on_an_end_is_the_answers_own(
    seen: Outcome | None, end: Ended, cause: Outcome
) -> None:
    assert causes.of(seen, end, LIMITS) is cause


def test_memory_that_the_warm_child_had_before_is_not_the_answers() -> None:
    warm_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    limits = replace(LIMITS, memory_mb=2 * warm_mb)
    assert causes.of(None, ended(signal=9, peak_mb=warm_mb + 1), limits) is Outcome.SIGNALLED
    assert causes.of(None, ended(signal=9, peak_mb=3 * warm_mb), limits) is Outcome.MEMORY


def test_one_process_is_no_crowd_where_none_may_begin() -> None:
    limits = replace(LIMITS, processes=0)  # threads may
    assert causes.of(Outcome.WALL, ended(), limits) is Outcome.WALL
    assert causes.of(Outcome.WALL, ended(count=32), limits) is Outcome.PROCESSES


@pytest.mark.parametrize("claim", [*Outcome, "", "DONE", None, 7, [], {}])
def test_an_attempt_can_claim_nothing_that_leaves_its_group(claim: object) -> None:
    """But too many processes, which is looked at."""
    assert causes.parsed(claim).is_programs


@pytest.mark.parametrize("error", [ValueError(), OSError(28, "full"), KeyboardInterrupt()])
def test_an_error_of_the_scorer_is_no_limit(error: BaseException) -> None:
    assert causes.claimed(error) is None
