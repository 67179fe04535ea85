"""The overlay for vLLM: its image, its memory, and the connections of weights."""

from pathlib import Path

from tests.k8s.rendered import RENDERED, WORKLOADS, labels, matches, of, pod


def test_nodes_for_vllm_have_its_image_and_what_it_needs():
    def node(overlay):
        deployments = of(RENDERED[overlay], "Deployment")
        (rollout,) = [d for d in deployments if d["metadata"]["name"] == "rollout"]
        return rollout

    assert pod(node("dev"))["containers"][0]["image"] == "banyan-rollout:dev"
    spec = pod(node("dev-vllm"))
    (container,) = spec["containers"]
    assert container["image"] == "banyan-rollout-vllm:dev"
    (shared,) = [v["emptyDir"] for v in spec["volumes"] if v["name"] == "shm"]
    assert shared["medium"] == "Memory"
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert "/dev/shm" in writable
    homes = [v["value"] for v in container["env"] if v["name"] in ("HOME", "VLLM_CACHE_ROOT")]
    assert len(homes) == 2 and all(
        any(home.startswith(path) for path in writable) for home in homes
    )
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300


def test_learner_and_nodes_for_vllm_reach_each_other_for_a_hand_over():
    opened = {
        name: [p for p in of(rendered, "NetworkPolicy") if "handover" in p["metadata"]["name"]]
        for name, rendered in RENDERED.items()
    }
    assert not opened["dev"] and len(opened["dev-vllm"]) == 1
    spec = opened["dev-vllm"][0]["spec"]
    both = [
        spec["podSelector"],
        *(peer["podSelector"] for rule in spec["ingress"] for peer in rule["from"]),
    ]
    both += [peer["podSelector"] for rule in spec["egress"] for peer in rule["to"]]
    for workload in of(RENDERED["dev-vllm"], *WORKLOADS):
        meant = workload["metadata"]["name"] in ("learner", "rollout")
        assert all(matches(selector, labels(workload)) is meant for selector in both), workload[
            "metadata"
        ]["name"]
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [
        port
        for rules in (spec["ingress"], spec["egress"])
        for rule in rules
        for port in rule["ports"]
    ]
    assert ports == 2 * [{"port": 32768, "endPort": 60999}] and (low, high) == (32768, 60999), (
        "the kernel's own choice"
    )
