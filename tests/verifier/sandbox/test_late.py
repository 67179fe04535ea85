"""Answers that were there at the deadline of a verifier that stood still, as at a SIGSTOP."""

import asyncio
import time
from pathlib import Path

import pytest

from services.verifier.sandbox import worker
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.worker import ScorerSpec, Worker

SCORE = """
import time
def score(completion):
    time.sleep(0.2)
    return 1.0
"""


async def test_an_answer_that_waited_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may tell what a tool did outside, which nobody could ask again."""
    (tmp_path / "late_score.py").write_text(SCORE)
    tmp_path.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    child = await Worker.start(ScorerSpec("late_score:score", {}), Limits(deadline_s=0.5))
    monkeypatch.setattr(worker, "ROUNDS", 1)
    monkeypatch.setattr(worker, "_GRACE_S", 0.0)
    try:
        asked = asyncio.create_task(child.score({"completion": "a", "row": {}}))
        await asyncio.sleep(0.02)  # it is under way
        time.sleep(1.5)
        assert (await asked)["value"] == 1.0
    finally:
        await child.close()
