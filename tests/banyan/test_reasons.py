"""Reasons have one list, and programs that act on one name it from there."""

import ast
from pathlib import Path

from banyan.reasons import Reason

ROOT = Path(__file__).parents[2]


def test_the_value_of_a_reason_is_its_name() -> None:
    assert all(reason.value == reason.name for reason in Reason)
    assert f"{Reason.STALE_EPOCH}" == "STALE_EPOCH"


def test_no_service_spells_a_reason_out() -> None:
    known = {reason.value for reason in Reason}
    spelled = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for folder in ("services", "banyan", "methods")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "reasons.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in known
    ]
    assert spelled == []
