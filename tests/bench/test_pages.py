"""The pages of docs/benchmarks show the recorded figures, all benches, and missed targets first."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench import pages
from bench.harness import table
from bench.harness.record import LATEST, NO_TARGET, RECORDED, Headline, Table, number, read, write
from bench.harness.table import Result
from bench.pages import FIGURES, ORDER, PAGES, homes, keep, main, rewritten, tables

COMMIT = "0123456789" * 4
KNOWN = tables()


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_that_are_written(page: Path) -> None:
    text = page.read_text()
    assert rewritten(text, KNOWN, homes()) == text, "run make bench-pages"
    assert text.count("<!-- table: ") == text.count("<!-- /table -->") > 0


@pytest.mark.parametrize("bench", ORDER)
def test_every_bench_has_a_page_and_a_row_of_the_overview(bench: str) -> None:
    assert homes()[bench] == f"{bench}.md"
    assert f"| [{bench}]({bench}.md) |" in _block("overview")


def test_every_recorded_headline_has_a_row_and_a_page_that_shows_its_table() -> None:
    rows = _block("overview").splitlines()
    for name, recorded in KNOWN.items():
        for entry in recorded.headline:
            assert any(f"| {entry.what} | {entry.figure} | {entry.target} |" in row for row in rows)
            assert name in homes()


@pytest.mark.parametrize("name", KNOWN)
def test_a_headline_has_a_target_or_says_that_it_has_none(name: str) -> None:
    for entry in KNOWN[name].headline:
        assert entry.target and (entry.met is None) == (entry.target == NO_TARGET)


@pytest.mark.parametrize("name", KNOWN)
def test_a_measured_table_has_a_commit_and_a_date(name: str) -> None:
    recorded = KNOWN[name]
    if recorded.rows:
        assert re.fullmatch(r"[0-9a-f]{40}", recorded.commit)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", recorded.date)
    assert all(len(row) == len(recorded.columns) for row in recorded.rows)


def test_missed_targets_are_named_first() -> None:
    headlines = [entry for recorded in KNOWN.values() for entry in recorded.headline]
    missed = [f"| {entry.what} | {entry.figure} |" for entry in headlines if entry.met is False]
    assert missed and all(row in _block("missed") for row in missed)
    overview = (PAGES / "README.md").read_text()
    assert re.findall(r"<!-- table: (\S+) -->", overview) == ["missed", "overview"]


def test_a_run_is_written_beside_the_recorded_figures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    result = Result("packing")
    result.add("faster", 4.2, "x", "bar: at least 4.5 MISSED")
    result.add("planned", 12_000.0, "1/s", "bar: at least 10,000 for one planner")
    result.add("seconds", 1.0, "s", "middle half 0.9 to 1.1")
    result.save()
    assert [path.name for path in (tmp_path / "packing").iterdir()] == [LATEST]
    latest = read(tmp_path / "packing" / LATEST)
    assert latest.command == "python -m bench packing"
    assert latest.rows[0] == ["faster", 4.2, "x", "bar: at least 4.5 MISSED"]
    assert latest.headline == [
        Headline(what="faster", figure="4.2 x", target="at least 4.5", met=False),
        Headline(what="planned", figure="12,000 1/s", target="at least 10,000", met=True),
    ]


def test_a_run_without_targets_has_its_first_figure_in_the_overview() -> None:
    result = Result("refresh-vllm")
    result.add("first segment", 3.5, "s")
    assert result.table().command == "python -m bench refresh"
    only = Headline(what="first segment", figure="3.5 s", target=NO_TARGET, met=None)
    assert result.table().headline == [only]


def test_a_run_is_kept_if_it_is_of_one_commit(tmp_path: Path) -> None:
    results, figures = tmp_path / "results", tmp_path / "figures"
    run = _run(COMMIT)
    write(results / "packing" / LATEST, replace(run, commit=f"{COMMIT}-changed"))
    write(figures / "packing" / "shapes.json", run)
    with pytest.raises(RuntimeError, match="clean checkout"):
        keep("packing", results, figures)
    assert not (figures / "packing" / RECORDED).exists()
    write(results / "packing" / LATEST, run)
    assert keep("packing", results, figures) == ["packing/shapes"]
    assert read(figures / "packing" / RECORDED) == run


def test_pages_are_written_from_the_recorded_figures_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures, docs = tmp_path / "figures", tmp_path / "docs"
    docs.mkdir()
    write(figures / "packing" / RECORDED, _run(COMMIT))
    write(figures / "packing" / LATEST, _run(COMMIT))
    (figures / "packing" / "cells.json").write_text("{}")
    block = "<!-- table: packing -->\nold\n<!-- /table -->"
    (docs / "packing.md").write_text(f"before\n{block}\nafter\n")
    monkeypatch.setattr(pages, "tables", lambda: tables(figures))
    monkeypatch.setattr(pages, "homes", lambda: homes(docs))
    monkeypatch.setattr(pages, "PAGES", docs)
    main([])
    text = (docs / "packing.md").read_text()
    assert text.startswith("before\n") and text.endswith("<!-- /table -->\nafter\n")
    assert "old" not in text
    assert "| what | figure |\n| --- | --- |\n| a \\| b | 167,000 |" in text
    assert f"commit {COMMIT[:7]}." in text and "- quiet" in text
    (figures / "packing" / RECORDED).unlink()
    with pytest.raises(SystemExit, match=r"packing\.md shows 'packing'"):
        main([])


def test_figures_have_four_digits() -> None:
    shown = [number(value) for value in (0.12345, 4.68, 167_000.4, 1000)]
    assert shown == ["0.1235", "4.68", "167,000", "1,000"]


def test_runs_are_left_to_git_ignore() -> None:
    lines = (FIGURES.parents[1] / ".gitignore").read_text().splitlines()
    ignored = [line for line in lines if "bench/results" in line]
    assert ignored == [f"bench/results/*/{name}" for name in pages.OF_RUNS]


def _block(name: str) -> str:
    text = (PAGES / "README.md").read_text()
    return text.split(f"<!-- table: {name} -->")[1].split("<!-- /table -->")[0]


def _run(commit: str) -> Table:
    return Table(
        title="a title",
        columns=["what", "figure"],
        rows=[["a | b", 167_000.0]],
        notes=["quiet"],
        commit=commit,
        date="2026-11-25",
        command="python -m bench packing",
        machine="two cores",
        headline=[Headline(what="a", figure="1", target=NO_TARGET, met=None)],
    )
