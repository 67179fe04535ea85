"""Faults planted in real runs: an alert or a rule of `banyan doctor` names each, as docs say."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from banyan.cli.observe import programs
from banyan.cli.store import reading
from banyan.doctor.history import history
from banyan.doctor.rules import diagnose
from banyan.observability import rules
from banyan.runtime.ports import free_port
from banyan.v1 import gateway_service_pb2 as gw
from banyan.wire import plain_data
from services.chassis.rpc import rpc
from tests.faults.harness import OVER, System, system
from tests.observability import planted
from tests.observability.reading import Metrics, needs_prometheus

DEADLINE_S = 240.0
DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


def impatient() -> str:
    """Return the rules without the time for which an alert must hold."""
    text, cut = re.subn(r"\n +for: \d+m", "", rules.rule_file())
    assert cut
    return text


def diagnosed(state: Path, run_id: str) -> set[str]:
    """Return what `banyan doctor RUN` finds."""
    with reading(state) as client:
        run = client.run(run_id)
        steps = plain_data.metrics(client.policies(run.run_id))
        evaluations = list(client.progress(run.run_id).evals)
    return {finding.rule.name for finding in diagnose(history(steps, evaluations, run.step))}


class Watched:
    """What was said of each run, by alerts and by doctor."""

    def __init__(self, made: System, metrics: Metrics) -> None:
        self._made, self._metrics = made, metrics
        self.runs: dict[str, str] = {}
        self.alerts: dict[str, set[str]] = {}
        self.rules: dict[str, set[str]] = {}

    async def look(self) -> None:
        """Ask Prometheus and doctor about all runs; end those whose fault is named."""
        firing = await asyncio.to_thread(self._metrics.firing)
        for name, run_id in self.runs.items():
            rule = planted.NAMED[name][1]
            about = {"planted_rewards:slow"} if name == "slow-sandbox" else {run_id}
            about |= {process for _, process in firing if run_id in process}
            self.alerts.setdefault(name, set()).update(a for a, whom in firing if whom in about)
            if rule and rule not in self.rules.get(name, set()):
                found = await asyncio.to_thread(diagnosed, self._made.state, run_id)
                self.rules.setdefault(name, set()).update(found)
            if self.named(name):
                await self._end(run_id)

    def named(self, name: str) -> bool:
        alert, rule = planted.NAMED[name]
        return {alert} <= {"", *self.alerts[name]} and {rule} <= {"", *self.rules.get(name, ())}

    async def _end(self, run_id: str) -> None:
        self._made.run_id = run_id
        if (await self._made.look()).run.state not in OVER:
            request = gw.CancelRunRequest(run_id=run_id, cause="its fault is named")
            await rpc.call(self._made.gateway.CancelRun, request, 20.0, 20.0)


@pytest.mark.slow
@needs_prometheus
async def test_each_planted_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_PATH", str(tmp_path))
    monkeypatch.setattr(programs, "rule_file", impatient)
    planted.plant_stale_node(monkeypatch)
    recipes = planted.recipes(tmp_path)
    async with system(tmp_path / "s") as made:
        port = free_port()
        with programs.prometheus(programs.found("prometheus"), made.state, port, 1.0) as tool:
            watched = Watched(made, Metrics(tool.address))
            for name, recipe in recipes.items():
                watched.runs[name] = await made.create(recipe)
            end = time.monotonic() + DEADLINE_S
            while time.monotonic() < end:
                await watched.look()
                if all(map(watched.named, watched.runs)):
                    break
                await asyncio.sleep(1.0)
    missing = [name for name in watched.runs if not watched.named(name)]
    assert missing == [], (watched.alerts, watched.rules)
    # An alert about one run says nothing of the others.
    assert "BanyanScoresSlow" not in watched.alerts["collapse"]
    assert "BanyanNodeStale" not in watched.alerts["constant"]


def test_docs_say_what_names_each_planted_fault() -> None:
    section = DOCS.read_text().partition("## What names a fault")[2].partition("\n## ")[0]
    table = re.findall(r"^\| `([\w-]+)`.*? \| (.*?) \| (.*?) \|$", section, re.M)
    said = {name: (alert, rule) for name, alert, rule in table}
    assert set(said) == set(planted.NAMED)
    for name, (alert, rule) in planted.NAMED.items():
        assert alert in said[name][0], name
        assert rule in said[name][1], name
