"""A Prometheus that a test asks: its binary, its answers, and its alerts."""

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="NOT TESTED: prometheus and promtool are missing; tests/setup.sh installs them",
)


class Metrics:
    """Answers of a Prometheus.

    address: http://host:port
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now; raise AssertionError if it is none."""
        found = self._get("query", query=expression)["result"]
        return list(found)

    def value(self, expression: str) -> float:
        """Return the only sample's value, or the first one's; NaN for none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else float("nan")

    def firing(self) -> set[tuple[str, str]]:
        """Return the names of alerts that fire, each with its run, scorer or process."""
        alerts = [a for a in self._get("alerts")["alerts"] if a["state"] == "firing"]
        return {(a["labels"]["alertname"], about(a["labels"])) for a in alerts}

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """Return what is scraped."""
        return list(self._get("targets")["activeTargets"])

    def _get(self, what: str, **arguments: str) -> dict[str, Any]:
        url = f"{self.address}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return dict(json.load(answer)["data"])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from None


def about(labels: dict[str, str]) -> str:
    """Return what an alert is about."""
    return next((labels[key] for key in ("run", "scorer", "process", "queue") if key in labels), "")
