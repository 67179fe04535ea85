"""The note of what a logger has logged, in a file beside its folder; a new learner goes on from it.

Without a note, or with a torn one, loggers know by themselves, or log steps twice.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from banyan.loggers.tags import PLAIN


@dataclass(slots=True)
class Note:
    """Record of what a logger has logged.

    step: newest step, -1 for none
    evaluations: labels of evaluations
    completions: newest step with samples of completions, -1 for none
    tags: names of metrics that its log began with; empty before it has begun
    """

    path: Path
    step: int = -1
    evaluations: set[str] = field(default_factory=set)
    completions: int = -1
    tags: str = ""

    def write(self) -> None:
        """Write the note, whole or not at all. Raises OSError."""
        fresh = self.path.with_suffix(".new")
        note = {
            "step": self.step,
            "evaluations": sorted(self.evaluations),
            "completions": self.completions,
            "tags": self.tags,
        }
        fresh.write_text(json.dumps(note))
        os.replace(fresh, self.path)


def read(path: Path) -> Note:
    """Return a logger's note, an empty one without any.

    Notes without tags are of logs that began before names were grouped. Samples of a step without
    metrics are logged again: TensorBoard voids all of such a step.
    """
    try:
        note = json.loads(path.read_text())
        step = int(note["step"])
        return Note(
            path=path,
            step=step,
            evaluations=set(note["evaluations"]),
            completions=min(step, int(note.get("completions", -1))),
            tags=str(note.get("tags", PLAIN)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Note(path)
