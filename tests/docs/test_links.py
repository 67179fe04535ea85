"""Links of documents to files outside docs, lists, and the checks of a built site."""

from pathlib import Path

import pytest

from docs.site import checked, links
from docs.site.docstrings import listed


@pytest.mark.parametrize(
    ("origin", "link", "there"),
    [
        ("docs/rewards.md", "methods.md#scorers", "methods.md#scorers"),
        ("docs/adr/README.md", "../protocol.md", "../protocol.md"),
        ("docs/rewards.md", "../recipes/programs.yaml", "source/recipes/programs.yaml.md"),
        ("docs/adr/README.md", "../../README.md#use", "../source/README.md#use"),
        ("README.md", "docs/recipe.md", "../recipe.md"),
        ("README.md", "services/rollout/README.md", "services/rollout/README.md"),
        ("services/rollout/README.md", "../../docs/adr/README.md", "../../../adr/README.md"),
        ("docs/plugins.md", "../methods", "source/methods/README.md"),
        ("docs/benchmarks/README.md", "history", "history/README.md"),
        ("docs/plugins.md", "https://example.org/x.md", "https://example.org/x.md"),
        ("docs/plugins.md", "#here", "#here"),
        ("docs/plugins.md", "absent.md", "absent.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(origin: str, link: str, there: str) -> None:
    assert links.rewritten(f"see [a]({link}), b", origin) == f"see [a]({there}), b"


def test_code_is_left_alone() -> None:
    text = "`[a](../README.md)` and\n\n```text\n[a](../README.md)\n- b\n```\n"
    assert links.rewritten(text, "docs/plugins.md") == text == links.spaced(text)
    assert links.named(text, "docs/plugins.md") == set()


def test_brackets_one_behind_the_other_are_no_reference() -> None:
    assert links.bracketed("a[g][l], [r = 1] [s = 1]") == "a[g]\\[l], [r = 1] \\[s = 1]"
    assert links.bracketed("`a[g][l]` and [x](y.md)") == "`a[g][l]` and [x](y.md)"


def test_named_files_are_those_that_exist() -> None:
    text = "[a](recipe.md), [b](../recipes/treepo.yaml), [c](../nowhere.py), [d](#e)"
    assert links.named(text, "docs/x.md") == {"docs/recipe.md", "recipes/treepo.yaml"}


def test_a_list_gets_an_empty_line_before_it_and_none_inside() -> None:
    assert links.spaced("words:\n- a\n  more\n- b\n\n1. c") == "words:\n\n- a\n  more\n- b\n\n1. c"


def test_a_file_is_shown_as_it_is_and_a_folder_by_its_names() -> None:
    page = links.shown("recipes/treepo.yaml")
    text = (links.ROOT / "recipes" / "treepo.yaml").read_text().rstrip()
    assert "# recipes/treepo.yaml" in page and text in page
    assert "- `treepo.yaml`" in links.shown("recipes")


def test_fields_of_a_docstring_become_a_list() -> None:
    text = "A place.\n\na: one\n  more\nb, c: two\n\nRaises InvalidInput."
    assert listed(text) == (
        "A place.\n\n\n- `a`: one\n  more\n- `b, c`: two\n\nRaises InvalidInput."
    )
    assert listed("Return x.\n\nIt is: so.") == "Return x.\n\nIt is: so."


def test_dead_links_anchors_and_foreign_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html">b</a><a href="b.html#x">x</a><a href="#top">t</a>'
        '<a href="c.html">c</a><a href="https://example.org/">far</a><a href="mailto:a@b.c">m</a>'
        '<script src="//example.org/s.js"></script><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "b.html").write_text('<p id="y"></p>')
    (tmp_path / "s.css").write_text("a {background: url(https://example.org/f.woff)}")
    (tmp_path / "404.html").write_text('<a href="/gone.html">x</a>')
    assert checked.problems(tmp_path) == [
        "a.html: loads //example.org/s.js from elsewhere",
        "a.html: b.html#x names no anchor of that page",
        "a.html: c.html leads nowhere",
        "s.css: loads https://example.org/f.woff from elsewhere",
    ]
    assert checked.problems(tmp_path / "none") == [f"{tmp_path / 'none'} holds no page"]
