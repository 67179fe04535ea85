"""Environments: what an answer costs beside the tool's own time.

Step: two runs of the scripted engine whose paths differ by their number of answers alone. The
difference of processor time of all services but the learner, over that of answers, is what one
costs through gRPC, event and store, the sampling of the next action included. The calculator's own
time is a part of it. Memory: sessions of 100 variables behind one another's forks, as a tree's.
"""

import asyncio
import json
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from banyan.segment import Kind
from bench.environments import slow_tool
from bench.environments.sessions import BRANCHES, open_sessions
from bench.harness.table import Result, median
from tests.faults.harness import System, recipe, system, tiny_model

TIMES, STEPS, GROUPS, WIDTH = 3, 2, 4, 8
FEW, MANY = 2, 10
BAR_MS, BAR_MB, BAR_RATIO = 5, 300, 1.15
_CHAIN = {
    "": {"=": 1.0},
    "=": {"6": 0.5, "1": 0.5},
    "=6": {"*": 1.0},
    "=6*": {"7": 1.0},
    "=6*7": {"?": 1.0},
    "=1": {"*": 1.0},
    "=1*": {"1": 1.0},
    "=1*1": {"?": 1.0},
    "42 ": {"=": 1.0},
    " 1 ": {"=": 1.0},
}
_TICKS = os.sysconf("SC_CLK_TCK")


def run() -> Result:
    """Measure answers, sessions, and steps with a slow tool."""
    result = Result("environments")
    costs = []
    for _ in range(TIMES):
        few, many = (asyncio.run(_run(turns)) for turns in (FEW, MANY))
        costs.append(1e3 * (many[0] - few[0]) / (many[1] - few[1]))
    result.add("processor time of an answer", median(costs), "ms", f"at most {BAR_MS}")
    result.add("least and most", min(costs), "ms", f"to {max(costs):.2f}")
    before, after = asyncio.run(open_sessions())
    result.add(f"{BRANCHES} open sessions, PSS", after - before, "MB", f"at most {BAR_MB}")
    result.add(f"slow tool: tool time of {slow_tool.TURNS} answers", slow_tool.TOOL_S, "s")
    for groups in (slow_tool.FEW, slow_tool.MANY):
        slow = asyncio.run(slow_tool.measure(groups))
        of = f"{slow.paths} paths: step"
        result.add(f"{of} with a tool of no time", slow.engine_s, "s", "engine time")
        result.add(f"{of} with a tool of {slow_tool.WAIT_S:g} s", slow.step_s, "s")
        result.add(f"{of} over the larger of both", slow.ratio, "times", f"at most {BAR_RATIO}")
    result.notes.append(
        f"{STEPS} steps of {GROUPS} groups of {WIDTH} paths with {FEW} and {MANY} answers, "
        f"{TIMES} times, medians"
    )
    result.notes.append(slow_tool.NOTE)
    return result


async def _run(turns: int) -> tuple[float, int]:
    """Run; return seconds of processor time of the services, and the number of answers."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        async with system(at / "state") as made:
            await made.create(_recipe(at, turns))
            run = await made.finish(600.0)
            spent_s = _processor_s(made)
        with sqlite3.connect(at / "state" / "store.sqlite") as db:
            ((answers,),) = db.execute(
                "select count(*) from segments where kind = ?", (int(Kind.TOOL),)
            ).fetchall()
        if run.cause:
            raise RuntimeError(f"the run failed: {run.cause}")
    return spent_s, answers


def _recipe(folder: Path, turns: int) -> dict[str, Any]:
    rows = folder / "rows.jsonl"  # prompts without a sum, which the engine would answer itself
    lines = (json.dumps({"prompt": f"go{n}", "answer": "6"}) for n in range(64))
    rows.write_text("\n".join(lines))
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows), "reward": "number"},
        generate={"policy": "iid", "settings": {"width": WIDTH}, "max_new_tokens": 6 * (turns + 1)},
        environment={
            "name": "calculator",
            "settings": {"begin": "=", "end": "?"},
            "turns": turns,
        },
        filter=[{"name": "regex", "settings": {"pattern": "^=(.)", "equals": "answer"}}],
        budget={"steps": STEPS, "minutes": 10.0},
        control={"groups_per_batch": GROUPS, "max_staleness": 0},
        eval={"samples": 0, "max_rows": 2},
    )
    data["resources"]["engine_settings"] = {"chain": _CHAIN}
    return data


def _processor_s(made: System) -> float:
    children = made.supervisor.children.values()
    pids = [c.pid for c in children if c.running and c.service != "learner"]
    return sum(map(_spent_s, pids))


def _spent_s(pid: int) -> float:
    """Return the processor time of a process, and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS
