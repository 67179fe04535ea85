"""What Prometheus needs to read the pods: ports, the way in, the secret; and what Grafana loads."""

import json

import pytest

from banyan.observability import manifests, rules
from tests.k8s.rendered import (
    METRICS_PORT,
    OPERATOR,
    RENDERED,
    ROOT,
    SERVICES,
    WORKLOADS,
    containers,
    labels,
    matches,
    of,
)

OBSERVED = RENDERED["dev-observed"]


@pytest.mark.parametrize("overlay", list(RENDERED))
def test_every_service_serves_metrics_and_prometheus_alone_may_read_them(overlay: str) -> None:
    objects = RENDERED[overlay]
    maps = {o["metadata"]["name"]: o["data"] for o in of(objects, "ConfigMap")}
    (way,) = [p for p in of(objects, "NetworkPolicy") if p["metadata"]["name"] == "metrics"]
    for workload, container in containers(objects):
        name = workload["metadata"]["name"]
        if name not in SERVICES:
            assert not matches(way["spec"]["podSelector"], labels(workload))
            continue
        environment = {
            key: value
            for source in container["envFrom"]
            for key, value in maps[source["configMapRef"]["name"]].items()
        }
        assert environment["BANYAN_METRICS_LISTEN"] == f"0.0.0.0:{METRICS_PORT}"
        assert matches(way["spec"]["podSelector"], labels(workload))
    (rule,) = way["spec"]["ingress"]
    assert rule["ports"] == [{"port": METRICS_PORT}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}


def test_the_monitor_selects_the_services_and_knows_their_secret() -> None:
    (monitor,) = of(OBSERVED, "PodMonitor")
    assert monitor["apiVersion"] == OPERATOR
    for workload in of(OBSERVED, *WORKLOADS):
        selected = matches(monitor["spec"]["selector"], labels(workload))
        assert selected == (workload["metadata"]["name"] in SERVICES)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for workload, container in containers(OBSERVED):
        if workload["metadata"]["name"] in SERVICES:
            assert endpoint["port"] in {p["name"] for p in container["ports"]}
    asked = endpoint["authorization"]["credentials"]
    secrets = {o["metadata"]["name"]: o["data"] for o in of(OBSERVED, "Secret")}
    assert asked["key"] in secrets[asked["name"]]
    assert monitor["metadata"]["namespace"] == "banyan-dev"
    set_labels = {relabelling["targetLabel"] for relabelling in endpoint["relabelings"]}
    assert set_labels == {"job", "process"}  # rules ask for them


def test_the_files_are_those_that_the_source_gives() -> None:
    folder = ROOT / manifests.FOLDER
    written = manifests.files()
    stale = [str(path) for path, text in written.items() if (folder / path).read_text() != text]
    assert stale == [], "make observability writes them"
    boards = {path.name for path in (folder / "dashboards").iterdir()}
    assert boards == {path.name for path in written if path.parent.name == "dashboards"}


def test_rules_and_dashboards_are_in_the_overlay_whole() -> None:
    (rule,) = of(OBSERVED, "PrometheusRule")
    assert rule["apiVersion"] == OPERATOR and rule["spec"] == rules.rules()
    (boards,) = [
        o
        for o in of(OBSERVED, "ConfigMap")
        if o["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    folder = ROOT / manifests.FOLDER / "dashboards"
    assert set(boards["data"]) == {path.name for path in folder.iterdir()}
    for name, text in boards["data"].items():
        assert json.loads(text) == json.loads((folder / name).read_text())
    assert sum(map(len, boards["data"].values())) < 900_000  # a ConfigMap holds 1 MiB
