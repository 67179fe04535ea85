"""The manifests, rendered by kubectl and checked against schemas and against our own rules."""

import base64
import dataclasses
import importlib
import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest

from services.chassis.messaging import subjects
from services.chassis.process import nats_server
from services.chassis.process.settings import Settings as Shared
from services.chassis.process.telemetry.providers import LISTEN as METRICS_LISTEN
from services.chassis.rpc.health import LIVENESS
from services.supervisor.watch import Patience
from tests.k8s.rendered import (
    METRICS_PORT,
    OPERATOR,
    PORTS,
    RENDERED,
    SERVICES,
    WORKLOADS,
    containers,
    labels,
    matches,
    of,
    pod,
)

SCHEMAS = ("1.30", "1.37")


# Seconds that each process may take to stop: work under way is finished, returned or saved.
DRAIN_S = {
    "gateway": 10,
    "treestore": 10,
    "verifier": 20,
    "rollout": 30,
    "learner": 60,
    "nats": 35,
    "postgres": 30,
}


QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.fixture(params=list(RENDERED))
def objects(request) -> list[dict]:
    return RENDERED[request.param]


def test_there_is_an_overlay_and_every_service_in_it(objects):
    assert {w["metadata"]["name"] for w in of(objects, *WORKLOADS)} == {
        *SERVICES,
        "nats",
        "postgres",
    }


@pytest.mark.parametrize("version", SCHEMAS)
def test_schemas_accept_every_object(objects, version):
    for document in objects:
        if document["apiVersion"] == OPERATOR:
            continue  # no schema of Kubernetes: test_observed_overlay.py
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_check_can_fail(objects):
    broken = {**of(objects, "Deployment")[0]}
    broken["spec"] = {**broken["spec"], "replicas": "two"}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, SCHEMAS[0], strict=True)


def test_names_and_namespaces(objects):
    (namespace,) = of(objects, "Namespace")
    names = set()
    for document in objects:
        meta = document["metadata"]
        assert NAME.fullmatch(meta["name"]), meta["name"]
        if document["kind"] != "Namespace":
            assert meta["namespace"] == namespace["metadata"]["name"]
        names.add((document["kind"], meta["name"]))
    assert len(names) == len(objects)


def test_selectors_select_their_own_pods(objects):
    for workload in of(objects, *WORKLOADS):
        assert matches(workload["spec"]["selector"], labels(workload)), workload["metadata"]["name"]
        assert labels(workload)["app.kubernetes.io/part-of"] == "banyan"
    for service in of(objects, "Service"):
        selected = [
            w
            for w in of(objects, *WORKLOADS)
            if matches({"matchLabels": service["spec"]["selector"]}, labels(w))
        ]
        (workload,) = selected
        assert workload["metadata"]["name"] == service["metadata"]["name"]
        offered = {p["name"] for c in pod(workload)["containers"] for p in c["ports"]}
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= offered
    for stateful in of(objects, "StatefulSet"):
        (service,) = [
            s
            for s in of(objects, "Service")
            if s["metadata"]["name"] == stateful["spec"]["serviceName"]
        ]
        assert service["spec"]["clusterIP"] == "None"


def test_quantities(objects):
    for _, container in containers(objects):
        resources = container["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert "memory" in resources["limits"]
        for value in [*resources["requests"].values(), *resources["limits"].values()]:
            assert QUANTITY.fullmatch(str(value)), value


def test_liveness_asks_for_progress_and_is_as_patient_as_the_supervisor(objects):
    patience = Patience()
    for workload, container in containers(objects):
        probe = container.get("livenessProbe", {})
        name = workload["metadata"]["name"]
        if name in SERVICES:
            assert probe["grpc"]["service"] == LIVENESS, name
            assert "service" not in container["readinessProbe"]["grpc"], name
        if name in (*SERVICES, "nats"):
            asked = probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]
            assert asked == (patience.every_s, patience.every_s, patience.misses), name


def test_probes_ask_ports_that_are_there(objects):
    for workload, container in containers(objects):
        by_name = {p["name"]: p["containerPort"] for p in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[kind]
            port = probe.get("grpc", probe.get("httpGet", {})).get("port")
            assert "exec" in probe or port in {*by_name, *by_name.values()}, (
                workload["metadata"]["name"],
                kind,
            )
            assert workload["metadata"]["name"] not in SERVICES or "grpc" in probe


def test_references_exist(objects):
    existing = {(o["kind"], o["metadata"]["name"]): o for o in of(objects, "ConfigMap", "Secret")}
    used = set()
    for workload, container in containers(objects):
        for source in container.get("envFrom", []):
            used.add(("ConfigMap", source["configMapRef"]["name"]))
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                used.add(("Secret", reference["name"]))
                secret = existing["Secret", reference["name"]]
                assert reference["key"] in {
                    **secret.get("data", {}),
                    **secret.get("stringData", {}),
                }
        volumes = {v["name"]: v for v in pod(workload).get("volumes", [])}
        claims = {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
        used |= {
            ("ConfigMap", v["configMap"]["name"]) for v in volumes.values() if "configMap" in v
        }
        used |= {("Secret", v["secret"]["secretName"]) for v in volumes.values() if "secret" in v}
        assert {m["name"] for m in container["volumeMounts"]} <= volumes.keys() | claims
        assert (
            "serviceAccountName" not in pod(workload)
            and pod(workload)["automountServiceAccountToken"] is False
        )
    dashboards = {
        ("ConfigMap", o["metadata"]["name"])
        for o in of(objects, "ConfigMap")
        if "grafana_dashboard" in o["metadata"].get("labels", {})
    }
    assert used == set(existing) - dashboards


def test_every_service_asks_for_the_secret_and_has_it(objects):
    maps = {o["metadata"]["name"]: o["data"] for o in of(objects, "ConfigMap")}
    secrets = {o["metadata"]["name"]: o["data"] for o in of(objects, "Secret")}
    for workload, container in containers(objects):
        if workload["metadata"]["name"] not in SERVICES:
            continue
        environment = {
            name: value
            for source in container["envFrom"]
            for name, value in maps[source["configMapRef"]["name"]].items()
        }
        file = Path(environment["BANYAN_SECRET_FILE"])
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(file.parent)]
        (volume,) = [v["secret"] for v in pod(workload)["volumes"] if v["name"] == mount["name"]]
        assert mount["readOnly"] is True and volume["defaultMode"] & 0o007 == 0
        assert len(base64.b64decode(secrets[volume["secretName"]][file.name])) >= 32


def settings_of(service: str) -> type[Shared]:
    folder = "treestore.storage" if service == "treestore" else service
    module = importlib.import_module(f"services.{folder}.settings")
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Shared)]
    (settings,) = [c for c in own if c.__module__ == module.__name__]
    return settings


def test_variables_are_settings_of_the_service(objects):
    maps = {o["metadata"]["name"]: o["data"] for o in of(objects, "ConfigMap")}
    for workload, container in containers(objects):
        name = workload["metadata"]["name"]
        if name not in SERVICES:
            continue
        settings = settings_of(name)
        known = {f"BANYAN_{field.name.upper()}" for field in dataclasses.fields(settings)}
        known |= {METRICS_LISTEN}  # telemetry reads it before there are settings
        variables = {v["name"] for v in container.get("env", [])}
        for source in container["envFrom"]:
            variables |= set(maps[source["configMapRef"]["name"]])
        ours = {variable for variable in variables if variable.startswith("BANYAN_")}
        assert ours <= known, (name, ours - known)
        assert {"BANYAN_NATS", "BANYAN_STORE", "BANYAN_LISTEN"} <= ours


def test_the_page_is_for_who_may_forward_a_port(objects):
    (gateway,) = [c for w, c in containers(objects) if w["metadata"]["name"] == "gateway"]
    listen = next(e["value"] for e in gateway["env"] if e["name"] == "BANYAN_HTTP_LISTEN")
    host, _, port = listen.rpartition(":")
    assert host == "127.0.0.1", "reading on loopback needs no secret"
    assert int(port) not in {p["containerPort"] for p in gateway["ports"]}


def test_each_service_has_its_name_and_its_port(objects):
    for workload, container in containers(objects):
        name = workload["metadata"]["name"]
        if name in SERVICES:
            assert container["name"] == name
            assert re.fullmatch(rf"banyan-{name}(-vllm)?:\w+", container["image"])
            ports = {p["name"]: p["containerPort"] for p in container["ports"]}
            assert ports == {"grpc": PORTS[name], "metrics": METRICS_PORT}
            assert container["startupProbe"]["grpc"]["port"] == PORTS[name]
        assert not container["image"].endswith(":latest") and ":" in container["image"]


def test_pods_have_no_rights(objects):
    for workload, container in containers(objects):
        outside, inside = pod(workload)["securityContext"], container["securityContext"]
        assert outside["runAsNonRoot"] is True and outside["runAsUser"] > 0
        assert outside["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (
            inside["readOnlyRootFilesystem"] is True and inside["allowPrivilegeEscalation"] is False
        )
        assert inside["capabilities"] == {"drop": ["ALL"]} and not inside.get("privileged")
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(workload))
        assert not any("hostPath" in v for v in pod(workload).get("volumes", []))


def test_grace_is_longer_than_the_drain(objects):
    for workload in of(objects, *WORKLOADS):
        assert (
            pod(workload)["terminationGracePeriodSeconds"]
            >= DRAIN_S[workload["metadata"]["name"]] + 5
        )


def test_disruption_budgets_cover_what_has_replicas(objects):
    budgets = of(objects, "PodDisruptionBudget")
    for workload in of(objects, *WORKLOADS):
        covered = [b for b in budgets if matches(b["spec"]["selector"], labels(workload))]
        assert bool(covered) == (workload["spec"]["replicas"] > 1), workload["metadata"]["name"]


def test_network_policies_deny_by_default_and_the_verifier_reaches_only_log_and_store(objects):
    policies = of(objects, "NetworkPolicy")
    (deny,) = [p for p in policies if p["metadata"]["name"] == "default-deny"]
    assert all(matches(deny["spec"]["podSelector"], labels(w)) for w in of(objects, *WORKLOADS))
    assert (
        set(deny["spec"]["policyTypes"]) == {"Ingress", "Egress"} and "ingress" not in deny["spec"]
    )
    for workload in of(objects, *WORKLOADS):
        name = workload["metadata"]["name"]
        (own,) = [p for p in policies if p["metadata"]["name"] == name]
        assert matches(own["spec"]["podSelector"], labels(workload))
    (verifier,) = [p for p in policies if p["metadata"]["name"] == "verifier"]
    reached = [
        t["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        for r in verifier["spec"]["egress"]
        for t in r["to"]
    ]
    assert reached == ["nats", "treestore"]


def test_only_one_process_opens_the_database(objects):
    (treestore,) = [w for w in of(objects, *WORKLOADS) if w["metadata"]["name"] == "treestore"]
    assert treestore["spec"]["replicas"] == 1 and treestore["spec"]["strategy"] == {
        "type": "Recreate"
    }
    for workload, container in containers(objects):
        names = {v["name"] for v in container.get("env", [])}
        assert ("BANYAN_DATABASE" in names) == (workload["metadata"]["name"] == "treestore")


def test_nats_syncs_every_write(objects):
    (config,) = [
        o["data"]["nats.conf"] for o in of(objects, "ConfigMap") if "nats.conf" in o["data"]
    ]
    assert "sync_interval: always" in config


def test_the_nats_configuration_has_room_for_our_streams(objects):
    (config,) = [
        o["data"]["nats.conf"] for o in of(objects, "ConfigMap") if "nats.conf" in o["data"]
    ]
    assert int(re.search(r"max_file_store: (\d+)GB", config)[1]) * 10**9 > subjects.RESERVED


def test_the_nats_configuration_is_one_that_the_server_takes(objects, tmp_path):
    (config,) = [
        o["data"]["nats.conf"] for o in of(objects, "ConfigMap") if "nats.conf" in o["data"]
    ]
    path = tmp_path / "nats.conf"
    path.write_text(config)
    environment = {"POD_NAME": "nats-0"}
    done = subprocess.run(
        [nats_server.binary(), "-t", "-c", path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
