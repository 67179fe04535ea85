"""The overlay with a way to the hub: it alone opens one, and the cache may be written."""

from tests.k8s.rendered import RENDERED, WORKLOADS, of, pod


def _ways_out(overlay: str) -> list[tuple[str, str, int]]:
    """Return pods, addresses and ports of the rules that lead out of the cluster."""
    return [
        (policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"], to, port["port"])
        for policy in of(RENDERED[overlay], "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        for to in (peer["ipBlock"]["cidr"] for peer in rule.get("to", []) if "ipBlock" in peer)
        for port in rule["ports"]
    ]


def test_the_gateway_alone_may_leave_the_cluster_and_by_tls_only() -> None:
    assert _ways_out("dev") == []
    assert _ways_out("dev-hub") == [("gateway", "0.0.0.0/0", 443)]
    assert {p["metadata"]["namespace"] for p in of(RENDERED["dev-hub"], "NetworkPolicy")} == {
        "banyan-dev"
    }


def test_data_sets_are_cached_where_the_gateway_may_write() -> None:
    (gateway,) = (
        workload
        for workload in of(RENDERED["dev-hub"], *WORKLOADS)
        if workload["metadata"]["name"] == "gateway"
    )
    (container,) = pod(gateway)["containers"]
    home = {e["name"]: e.get("value", "") for e in container["env"]}["HF_HOME"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert any(home.startswith(f"{mount}/") for mount in mounts)
