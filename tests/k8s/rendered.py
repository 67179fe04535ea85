"""The rendered manifests, and functions that select from them."""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


OVERLAYS = sorted(path.parent for path in (ROOT / "k8s" / "overlays").glob("*/kustomization.yaml"))


SERVICES = ("gateway", "treestore", "verifier", "rollout", "learner")


PORTS = {"gateway": 7100, "treestore": 7101, "verifier": 7102, "rollout": 7103, "learner": 7104}


METRICS_PORT = 9464  # the usual one of OpenTelemetry's exporter for Prometheus


OPERATOR = "monitoring.coreos.com/v1"


WORKLOADS = ("Deployment", "StatefulSet")


def render(overlay: Path) -> list[dict]:
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", overlay], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


RENDERED = {overlay.name: render(overlay) for overlay in OVERLAYS}


def of(objects, *kinds):
    return [o for o in objects if o["kind"] in kinds]


def pod(workload):
    return workload["spec"]["template"]["spec"]


def containers(objects):
    for workload in of(objects, *WORKLOADS):
        for container in pod(workload)["containers"] + pod(workload).get("initContainers", []):
            yield workload, container


def matches(selector: dict, labels: dict) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    sets = selector.get("matchExpressions", [])
    return wanted and all(
        labels.get(e["key"]) in e["values"] for e in sets if e["operator"] == "In"
    )


def labels(workload) -> dict:
    return workload["spec"]["template"]["metadata"]["labels"]
