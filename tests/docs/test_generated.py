"""Pages that are written from the code: the command line, and the services with their messages."""

from pathlib import Path

from typer.main import get_command

from banyan.cli.main import app
from docs.site import cli_page, proto_page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == cli_page.markdown(), "run `make cli-page`"
    top = get_command(app).commands  # type: ignore[attr-defined]
    assert all(f"\n## banyan {name}" in page for name in top)
    assert "| `--state STATE` | `.banyan` |" in page


def test_the_page_of_messages_is_up_to_date() -> None:
    page = (DOCS / "proto.md").read_text(encoding="utf-8")
    assert page == proto_page.markdown(), "run `make proto-page`"
    assert "### TreestoreService" in page or "### TreeStoreService" in page


def test_every_message_field_and_call_has_a_meaning() -> None:
    rows = [line for line in proto_page.markdown().splitlines() if line.startswith("| ")]
    assert len(rows) > 500
    assert [row for row in rows if row.endswith("|  |")] == []
