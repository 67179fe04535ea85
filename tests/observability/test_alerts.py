"""Alerts: promtool reads them, each fires on its fault alone, and leads to what to do about it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from banyan.observability import rules
from tests.observability.alert_series import FAULTS, promtool_file
from tests.observability.reading import needs_prometheus

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
ALERTS = {
    rule["alert"]: rule
    for group in rules.rules()["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def write(folder: Path, name: str, data: Any) -> Path:
    path = folder / name
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False))
    return path


@pytest.mark.slow
@needs_prometheus
def test_each_alert_fires_on_its_fault_and_no_other_does(tmp_path: Path) -> None:
    rule_file = write(tmp_path, "rules.yaml", rules.rule_file())
    read = promtool("check", "rules", rule_file)
    assert read.returncode == 0, read.stderr
    tried = promtool(
        "test", "rules", write(tmp_path, "tests.yaml", promtool_file("rules.yaml", ALERTS))
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize(
    ("name", "was", "now", "tried"),
    [
        ("BanyanNodeStale", "> 5", "> 5000", "BanyanNodeStale"),
        ("BanyanProcessDown", "== 0", ">= 0", "healthy"),
    ],
)
def test_these_tests_can_fail(tmp_path: Path, name: str, was: str, now: str, tried: str) -> None:
    text = rules.rule_file()
    before, _, after = text.partition(f"alert: {name}")
    assert was in after
    write(tmp_path, "rules.yaml", f"{before}alert: {name}{after.replace(was, now, 1)}")
    file = write(tmp_path, "tests.yaml", promtool_file("rules.yaml", ALERTS, only=tried))
    assert promtool("test", "rules", file).returncode != 0


def test_each_alert_has_a_fault_a_severity_and_a_section_that_says_what_to_do() -> None:
    assert list(FAULTS) and set(FAULTS) == set(ALERTS)
    text = OPERATIONS.read_text()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        (section,) = re.findall(rf"^### {name}\n\n(.*?)(?=^#|\Z)", text, re.M | re.S)
        for part in ("**Means.**", "**Confirm.**", "**Do.**"):
            assert part in section, f"{name} has no {part}"
    headings = set(re.findall(r"^### (Banyan\w+)$", text, re.M))
    assert headings == set(ALERTS), "a section of an alert that does not exist"


def test_a_cluster_may_name_another_address_of_the_page() -> None:
    (group, *_) = rules.rules("https://docs.example.org/operations")["groups"][3:]
    assert group["rules"][0]["annotations"]["runbook_url"] == (
        "https://docs.example.org/operations#banyanrunstalled"
    )
