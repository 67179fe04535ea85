"""`banyan report`: a document that needs nothing else, runs nothing, and obeys no text."""

import json
import math
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.cli.report import report
from banyan.cli.report.chart import Curve, drawn
from banyan.cli.report.document import Picture, Report, Table, document
from banyan.text.redaction import HIDDEN, redacted
from tests.cli.command import banyan
from tests.cli.refusals import refused
from tests.system.test_made_before import STORED

HOSTILE = (
    '</title></pre></style><script>alert(1)</script><img src=x onerror="a()">&lt;\x1b[2K\u202e'
)
ELEMENTS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "h3",
    "p",
    "section",
    "figure",
    "figcaption",
    "div",
    "svg",
    "line",
    "text",
    "polyline",
    "circle",
    "rect",
    "path",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "pre",
}


class Elements(HTMLParser):
    """The elements of a document, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def checked(text: str) -> Elements:
    """Return a document's elements; fail if it could load or run anything."""
    found = Elements(text)
    assert found.names <= ELEMENTS, found.names - ELEMENTS
    for name, value in found.attributes:
        assert not name.startswith("on") and name not in ("src", "href", "style", "action"), name
        assert "://" not in value or value == "http://www.w3.org/2000/svg"
    assert "default-src 'none'" in text and "url(" not in text and "@import" not in text
    return found


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_whatever_a_run_holds_stays_text(words: str) -> None:
    for text in (words, HOSTILE):
        report = Report(
            title=text,
            about=text,
            facts={text: text},
            measured=Table(columns=(text, text), rows=[(text, text)]),
            curves=[Curve(name=text, points=[(0, 0.0), (1, 1.0)])],
            pictures=[Picture(title=text, about=text, svg="", missing=text)],
            costs={text: text},
            findings=[(text, [text])],
            doctor=text,
            recipe=text,
        )
        checked(document(report))


def test_a_short_report_has_no_empty_parts() -> None:
    found = checked(document(Report(title="t", about="a", facts={}, measured=None)))
    assert found.names == {"html", "head", "meta", "title", "style", "body", "h1", "p"}


def points(svg: str) -> list[tuple[float, float]]:
    (path,) = re.findall(r'points="([^"]*)"', svg)
    return [(float(x), float(y)) for x, y in (p.split(",") for p in path.split())]


def test_a_curve_rises_where_its_values_do_and_says_its_ends() -> None:
    svg = drawn(Curve(name="Reward", points=[(1, 0.0), (2, 0.5), (4, 1.0)]))
    (x1, y1), (x2, y2), (x3, y3) = points(svg)
    assert x1 < x2 < x3 and math.isclose(x3 - x2, 2 * (x2 - x1), rel_tol=0.01)
    assert y1 > y2 > y3 and math.isclose(y1 - y2, y2 - y3, rel_tol=0.01)
    assert "<title>Reward: 0 at step 1, 1 at step 4</title>" in svg
    shares = drawn(Curve(name="Right", points=[(0, 0.25), (3, 0.5)], share=True))
    assert "Right: 25.0 % at step 0, 50.0 % at step 3" in shares


@pytest.mark.parametrize("values", [[], [0.5], [0.5, math.nan], [math.inf, 1.0]])
def test_a_curve_of_fewer_than_two_numbers_is_left_out(values: list[float]) -> None:
    assert drawn(Curve(name="x", points=list(enumerate(values)))) == ""


def test_a_flat_curve_and_one_of_a_single_step_are_drawn() -> None:
    flat = points(drawn(Curve(name="x", points=[(0, 3.0), (1, 3.0)])))
    assert flat[0][1] == flat[1][1]
    assert len(points(drawn(Curve(name="x", points=[(2, 0.0), (2, 1.0)])))) == 2


def test_a_long_curve_is_drawn_by_means_that_keep_its_shape() -> None:
    svg = drawn(Curve(name="x", points=[(n, float(n >= 5000)) for n in range(10_000)]))
    found = points(svg)
    assert len(found) == 400
    assert found[0][1] == found[199][1] > found[200][1] == found[-1][1]


def test_a_report_replaces_a_file_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = tmp_path / "report.html", tmp_path / "link.html"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    report._write(link, "new")
    assert link.is_symlink() and file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    whole = Path.write_text

    def full(path: Path, text: str, **more: str) -> int:
        whole(path, text[:1], **more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space") as failure:
        report._write(file, "newer")
    assert failure.value.filename == str(file)
    assert file.read_text() == "new" and sorted(tmp_path.iterdir()) == [link, file]


def test_secrets_of_a_recipe_are_hidden_and_nothing_else() -> None:
    recipe = {
        "generate": {"max_new_tokens": 5, "settings": {"tokens_per_row": 4}},
        "filter": [{"name": "judge", "settings": {"api_key": "sk-1", "api_key_env": "OPENAI_KEY"}}],
        "logging": {"url": "https://me:pass@host/x", "Authorization": "Bearer x", "token": ""},
        "secrets": ["NAME"],
    }
    assert redacted(recipe) == {
        "generate": {"max_new_tokens": 5, "settings": {"tokens_per_row": 4}},
        "filter": [{"name": "judge", "settings": {"api_key": HIDDEN, "api_key_env": "OPENAI_KEY"}}],
        "logging": {"url": f"https://{HIDDEN}@host/x", "Authorization": HIDDEN, "token": ""},
        "secrets": [HIDDEN],
    }


def test_a_stored_run_is_reported_without_the_rows_of_its_task(tmp_path: Path) -> None:
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path, filter="data")
    state = tmp_path / "state"
    (run,) = json.loads(banyan("runs", "ls", "--json", "--state", state).stdout)
    file = tmp_path / "report.html"
    said = banyan("report", run["run_id"], "-o", file, "--state", state)
    assert said.returncode == 0 and said.stdout.startswith(str(file)), said
    text = file.read_text(encoding="utf-8")
    found = checked(text)
    words = "".join(found.words)
    for part in (run["run_id"], "Before and after", "Curves", "Trees", "Costs", "Configuration"):
        assert part in words, part
    assert {"polyline", "rect", "table", "details"} <= found.names
    assert "row_json" not in text and '"answer"' not in text
    refused(banyan("report", run["run_id"], "-o", tmp_path, "--state", state), "is a folder")
