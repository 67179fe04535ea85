"""The services' READMEs have the same headings in the same order."""

import re
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[2] / "services"
HEADINGS = [
    "What it does",
    "What goes in and out",
    "Files",
    "Settings",
    "When things fail",
    "Tests",
]


@pytest.mark.parametrize(
    "service", ["gateway", "learner", "rollout", "supervisor", "treestore", "verifier"]
)
def test_a_readme_has_the_headings_of_all_in_their_order(service: str) -> None:
    result = re.findall(r"^## (.+)$", (SERVICES / service / "README.md").read_text(), re.MULTILINE)
    assert [heading for heading in result if heading in HEADINGS] == HEADINGS
