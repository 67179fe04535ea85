"""Stages of a step's time, read from a finished run's store (SQLite)."""

import sqlite3
from pathlib import Path

STAGES = (
    "gateway opens the trees",
    "node takes them, loads the policy and samples, to the last segment",
    "scoring and closing, last segment to last tree",
    "learner reads, studies and commits the batch",
    "training and the learner's hand-over",
)

_OF_BATCH = """
select min(t.opened_ms), max(t.closed_ms),
 (select max(s.stored_ms) from segments s join batch_trees m on m.tree_id = s.tree_id
  where m.run_id = b.run_id and m.ordinal = b.ordinal),
 b.stored_ms
from batches b join batch_trees m on m.run_id = b.run_id and m.ordinal = b.ordinal
 join trees t on t.tree_id = m.tree_id
where b.run_id = :run and b.ordinal = :ordinal
"""


def stages(database: Path, run_id: str) -> dict[str, list[float]]:
    """Return seconds of each stage, a value a step, without the first step.

    They sum to the time from policy to policy.
    """
    seconds: dict[str, list[float]] = {name: [] for name in STAGES}
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        at = dict(
            db.execute(
                "select step, stored_ms from policies where run_id = ? and not abandoned", (run_id,)
            )
        )
        for ordinal in range(1, max(at)):
            values = {"run": run_id, "ordinal": ordinal}
            opened, closed, ended, committed = db.execute(_OF_BATCH, values).fetchone()
            marks = [at[ordinal], opened, ended, closed, committed, at[ordinal + 1]]
            for name, before, after in zip(STAGES, marks, marks[1:], strict=False):
                seconds[name].append((after - before) / 1000)
    return seconds
