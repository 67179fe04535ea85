"""The notebook of the documentation: its outputs are of its code, and its code still does it."""

import copy
import json
import re
from typing import Any

import pytest

from docs.site import links, notebook_page
from tests.cli.command import ROOT

FILE = ROOT / "docs" / "notebook.ipynb"
_MACHINE = re.compile(r"(?<![\w:/.])/(?:tmp|root|home|work|usr|opt)/")


@pytest.fixture
def notebook() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def printed(notebook: dict[str, Any]) -> str:
    """Return all that a notebook's code prints."""
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", [])]
    return "".join("".join(o["text"]) for o in outputs if o["output_type"] == "stream")


def outputs_are_whole(notebook: dict[str, Any]) -> None:
    """Fail unless the notebook shows a run that learned, a tree by two estimators, and why."""
    text = printed(notebook)
    steps = re.findall(r"^\[ *[\d.]+ s\] step +(\d+)/16  reward ([\d.]+)", text, re.MULTILINE)
    assert [int(step) for step, _ in steps] == list(range(1, 17))
    assert float(steps[-1][1]) > float(steps[0][1]) + 0.3, "it learned nothing"
    assert re.search(r"^after step  0: [\d.]+ on 8 held-out prompts\nafter step 16: ", text, re.M)
    table = text.split("dr-grpo\n", 1)[1].split("\n")
    row = re.compile(r"'[a-h]*' +\d+ +[\d.]+ +([-+][\d.]+) +([-+][\d.]+)(?:  <)?")
    known = [found for line in table if (found := row.fullmatch(line))]
    assert len(known) > 8 and any(found[1] != found[2] for found in known), "the estimators agree"
    sums = re.findall(r"= ([-+][\d.]+) +dr-grpo ([-+][\d.]+)$", text, re.MULTILINE)
    assert len(sums) == 8, "a path for each answer"
    assert all(float(one) == pytest.approx(float(other), abs=0.011) for one, other in sums)
    own = text.split("dr-grpo")[-1]
    assert "├──" in own and "advantage +0.000" in own and "advantage -" in own
    assert not re.search(r"advantage \+0\.(?!000)", own), "against the best nobody is praised"
    pictures = notebook_page.page(notebook, "notebook").pictures
    assert len(pictures) == 3 and all("<svg" in svg for svg in pictures.values())
    curve, rose, other = pictures.values()
    assert "mean reward" in curve and "credit by dr-grpo" in other and rose != other


def test_outputs_are_of_the_code_that_is_there(notebook: dict[str, Any]) -> None:
    assert notebook_page.is_current(notebook), "run `make notebook`"
    outputs_are_whole(notebook)
    assert FILE.stat().st_size < 100_000
    counts = [c["execution_count"] for c in notebook["cells"] if c["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), "it ran once from the top"
    assert not _MACHINE.search(printed(notebook)), "an output names a folder of this machine"


def test_another_code_is_told_and_another_text_is_not(notebook: dict[str, Any]) -> None:
    other = copy.deepcopy(notebook)
    text = next(cell for cell in other["cells"] if cell["cell_type"] == "markdown")
    text["source"] = "# Another title"
    assert notebook_page.is_current(other)
    code = next(cell for cell in other["cells"] if cell["cell_type"] == "code")
    code["source"] = [*code["source"], "\n1"]
    assert not notebook_page.is_current(other)
    notebook_page.mark(other)
    assert notebook_page.is_current(other)


def test_the_page_has_texts_code_outputs_and_pictures(notebook: dict[str, Any]) -> None:
    page = notebook_page.page(notebook, "notebook")
    for cell in notebook["cells"]:
        assert "".join(cell["source"]) in page.markdown
    lines = printed(notebook).rstrip().split("\n")
    assert all(f"    {line}".rstrip() in page.markdown for line in lines)
    assert re.findall(r'<img src="([\w.-]+)" alt="[^"]+">', page.markdown) == list(page.pictures)
    assert '<a href="notebook.ipynb" download>' in page.markdown
    assert links.rewritten("[a](notebook.ipynb)", "docs/clients.md") == "[a](notebook.md)"


def test_an_output_that_no_page_shows_is_an_error() -> None:
    def with_output(**output: Any) -> dict[str, Any]:
        cell = {"cell_type": "code", "source": "x", "outputs": [output]}
        return {"cells": [cell], "metadata": {}}

    html = with_output(output_type="display_data", data={"text/html": "<b>x</b>"})
    with pytest.raises(ValueError, match="text/html"):
        notebook_page.page(html, "n")
    mute = with_output(output_type="display_data", data={"image/svg+xml": "<svg/>"})
    with pytest.raises(ValueError, match="needs words"):
        notebook_page.page(mute, "n")
    told = with_output(
        output_type="display_data",
        data={"image/svg+xml": "<svg/>"},
        metadata={"alt": '"a" < b'},
    )
    page = notebook_page.page(told, "n")
    assert 'alt="&quot;a&quot; &lt; b"' in page.markdown and page.pictures == {"n-1.svg": "<svg/>"}
    hostile = with_output(output_type="stream", name="stdout", text=["```\n", "<script>\n"])
    assert "    ```\n    <script>" in notebook_page.page(hostile, "n").markdown


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_and_shows_the_same_things(notebook: dict[str, Any]) -> None:
    from docs.site import notebook_run

    made = notebook_run.executed(notebook, cell_s=400)
    outputs_are_whole(made)
    assert notebook_page.is_current(made)
    kinds = [[o["output_type"] for o in c.get("outputs", [])] for c in made["cells"]]
    assert kinds == [[o["output_type"] for o in c.get("outputs", [])] for c in notebook["cells"]]
    assert not _MACHINE.search(printed(made))
