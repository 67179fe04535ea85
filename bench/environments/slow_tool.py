"""A training step whose tool takes half a second: waits for answers hide behind the engine's work.

Engine time is a step of the same run with a tool of no time: sampling, a process for each answer,
events, scores and the update. Tool time is that of the answers of one path, one behind the other,
as children suffice for all paths at once. A step that did one after the other would take the sum.
With few paths the engine has sampled all of them before the first answer is there, and it rests;
with many it always has a path to go on with.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.harness import recipe, system, tiny_model

WAIT_S, TURNS, STEPS = 0.5, 4, 5
TOOL_S = WAIT_S * TURNS
WIDTH, SLOTS = 4, 8
FEW, MANY = 8, 16  # groups of a step
LATENCY_S = 0.025  # of the engine for a token of as many branches as it has slots
_CHAIN = {"": {"g": 1.0}, "g": {"o": 1.0}, "go": {"?": 1.0}}
NOTE = (
    f"Slow tool: groups of {WIDTH} paths with {TURNS} answers, an engine of {SLOTS} slots"
    f" that takes {1e3 * LATENCY_S:g} ms for a token of all; means of {STEPS - 1} steps"
)


@dataclass(frozen=True, slots=True)
class SlowTool:
    """Mean seconds of a step, with a tool of no time and with the slow one.

    paths: of a step.
    """

    paths: int
    engine_s: float
    step_s: float

    @property
    def ratio(self) -> float:
        """The step over the larger of engine time and tool time."""
        return self.step_s / max(self.engine_s, TOOL_S)


async def measure(groups: int) -> SlowTool:
    """Run both, with steps of so many groups."""
    return SlowTool(groups * WIDTH, await _step_s(groups, 0.0), await _step_s(groups, WAIT_S))


async def _step_s(groups: int, wait_s: float) -> float:
    """Return the mean time of a step behind the first, in which children start."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        at.chmod(0o755)  # the class's children are of another user
        paths = {"BANYAN_CHILDREN_MOST": str(groups * WIDTH)}
        async with system(at / "state", extra=paths) as made:
            await made.create(_recipe(at, groups, wait_s))
            await made.reach(1)
            began = time.monotonic()
            await made.reach(STEPS)
            return (time.monotonic() - began) / (STEPS - 1)


def _recipe(folder: Path, groups: int, wait_s: float) -> dict[str, Any]:
    rows = folder / "rows.jsonl"
    lines = (json.dumps({"prompt": f"say{n}", "answer": "1"}) for n in range(256))
    rows.write_text("\n".join(lines))
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows), "reward": "number"},
        generate={"policy": "iid", "settings": {"width": WIDTH}, "max_new_tokens": 4 * TURNS},
        environment={
            "name": "bench.environments.waiting:Waiting",
            "settings": {"seconds": wait_s},
            "end": "?",
            "turns": TURNS,
            "concurrency": groups * WIDTH,
        },
        filter=[{"name": "length", "settings": {"most": 3, "buffer": 2}}],
        budget={"steps": STEPS + 1, "minutes": 10.0},
        control={"groups_per_batch": groups, "max_staleness": 0},
        eval={"samples": 0, "max_rows": 2},
    )
    engine = {"chain": _CHAIN, "latency_s": LATENCY_S}
    data["resources"] |= {"engine_settings": engine, "max_branches": SLOTS}
    return data
