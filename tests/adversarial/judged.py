"""Verdicts of scorers beside those of the corpus."""

from collections.abc import Sequence

import pytest

from banyan.plugins import Scored, Unscorable
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from tests.adversarial.corpus.case import UNSCORABLE, Case


async def judged(scoring: Scoring, case: Case) -> Scored | Unscorable:
    """Return the outcome of a case."""
    subject = case.subject
    spec = ScorerSpec(subject.scorer, subject.settings, group=bool(subject.peers))
    if not subject.peers:
        return (await scoring.score(spec, case.completion, subject.row)).outcome
    group = [*subject.peers, case.completion]
    return (await scoring.score_group(spec, group, subject.row))[-1].outcome


def wrong(case: Case, outcome: Scored | Unscorable) -> str:
    """Return what is wrong with an outcome; empty if it is the verdict of the corpus."""
    found = outcome.value if isinstance(outcome, Scored) else UNSCORABLE
    if found == case.expected or found == pytest.approx(case.expected):
        return ""
    said = outcome.parts if isinstance(outcome, Scored) else outcome.reason
    return f"{case.id}: {found} ({said}), should be {case.expected}"


def wrongs(cases: Sequence[Case], outcomes: Sequence[Scored | Unscorable]) -> list[str]:
    """Return what is wrong with the outcomes."""
    said = (wrong(case, outcome) for case, outcome in zip(cases, outcomes, strict=True))
    return [each for each in said if each]
