"""Rules of Prometheus: recording rules, and alerts with the address of what to do about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).with_name("rules.yaml")
DOCS = "docs/operations.md"
"""Page with a section for each alert; a cluster may name an address at which people can read it."""
_WIDTH = 1000  # expressions stay on a line


def rules(docs: str = DOCS) -> dict[str, Any]:
    """Return the groups of rules; each alert has its `runbook_url` below `docs`."""
    data: dict[str, Any] = yaml.safe_load(SOURCE.read_text())
    for group in data["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["annotations"]["runbook_url"] = f"{docs}#{rule['alert'].lower()}"
    return data


def rule_file(docs: str = DOCS) -> str:
    """Return the rules as a rule file of Prometheus."""
    return dumped(rules(docs))


def manifest(docs: str = DOCS) -> str:
    """Return the rules as a PrometheusRule of the Prometheus operator."""
    return dumped(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "banyan"},
            "spec": rules(docs),
        }
    )


def dumped(data: Mapping[str, Any]) -> str:
    """Return data as YAML, in its own order."""
    return yaml.safe_dump(dict(data), sort_keys=False, width=_WIDTH, allow_unicode=True)
