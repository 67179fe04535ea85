"""/metrics of every process of a running system, as Prometheus finds and reads them."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.harness import System, recipe, system, tiny_model

pytestmark = pytest.mark.slow
WANTED = {
    "gateway": {"banyan_trees_opened_total"},
    "treestore": {
        "banyan_segments_stored_total",
        "banyan_ingest_duration_seconds_bucket",
        "banyan_members",
        "banyan_run_step",
        "banyan_trees_held",
        "banyan_store_waiting",
        "banyan_log_waiting",
        "banyan_log_bytes",
    },
    "verifier": {"banyan_scores_total", "banyan_score_duration_seconds_bucket"},
    "rollout": {"banyan_tokens_sampled_total", "banyan_engine_running"},
    "learner": {"banyan_step_duration_seconds_count", "banyan_step_reward_bucket"},
}


async def test_every_process_says_how_it_does(tmp_path: Path, eventually) -> None:
    data = recipe(tiny_model(tmp_path / "m"), budget={"steps": 200, "minutes": 5.0})
    async with system(tmp_path / "s", {}) as made:
        await made.create(data)
        await made.reach(3)
        for service, names in WANTED.items():
            await eventually(lambda s=service, n=names: n <= set(read(made, s)), 30.0)
        assert all(
            dict(labels)["service"] == "treestore" for labels in read(made, "treestore").values()
        )
        before = target(made, "verifier")
        child = next(c for c in made.supervisor.children.values() if c.service == "verifier")
        child.signal(signal.SIGKILL)
        await eventually(lambda: target(made, "verifier") not in ("", before), 30.0)
        await eventually(lambda: "banyan_scores_total" in read(made, "verifier"), 30.0)
    assert list((tmp_path / "s" / "metrics").iterdir()) == []


def target(made: System, service: str) -> str:
    """Return the announced address of a service's process; empty without one."""
    for path in sorted((made.state / "metrics").glob(f"{service}*.json")):
        (entry,) = json.loads(path.read_text())
        return str(entry["targets"][0])
    return ""


def read(made: System, service: str) -> dict[str, dict[str, str]]:
    """Return the labels of a sample of each name; nothing while nobody answers."""
    request = urllib.request.Request(
        f"http://{target(made, service)}/metrics",
        headers={"Authorization": f"Bearer {(made.state / 'secret').read_text().strip()}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {
        s.name: s.labels for family in text_string_to_metric_families(text) for s in family.samples
    }
