"""The picture in docs shows the recorded figures."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.harness.record import Table
from bench.pages import tables
from bench.pictures.__main__ import PICTURE
from bench.pictures.bars import Bar, Panel, drawn
from bench.pictures.seconds import panels

KNOWN = tables()
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_the_one_that_is_made_of_the_recorded_figures() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(panels(KNOWN)), "run make bench-pages"


def test_figures_are_the_tables() -> None:
    until, step = panels(KNOWN)
    assert [(bar.name, bar.length, sorted(bar.dots)) for bar in until.bars] == [
        ("GRPOTrainer of TRL", 92.9, [55.3, 92.9, 195.5]),
        ("naive loop", 116.0, [56.2, 116.0, 223.7]),
        ("Banyan", 28.9, [14.7, 28.9, 46.5]),
    ]
    assert [(bar.length, bar.dots) for bar in step.bars] == [(8.77, ()), (2.99, ())]


def _learning(side: str, cell: str) -> dict[str, Table]:
    """Return the tables with another end of a side's whole runs, and without naive loops."""
    learning = KNOWN["trl/learning"]
    rows = [
        [*row[:2], cell if row[1] == side else row[2], *row[3:]]
        for row in learning.rows
        if row[1] != "naive loop"
    ]
    return {**KNOWN, "trl/learning": replace(learning, rows=rows)}


def test_a_side_that_was_not_measured_has_no_bar() -> None:
    (until, _) = panels(_learning("Banyan", "step 2, 7.0 s"))
    assert [(bar.name, bar.length) for bar in until.bars] == [
        ("GRPOTrainer of TRL", 92.9),
        ("Banyan", 7.0),
    ]


def test_a_run_that_was_never_there_has_no_bar() -> None:
    with pytest.raises(ValueError, match="'never' has no seconds"):
        panels(_learning("TRL", "never"))


def test_lengths_are_on_one_scale_and_words_are_escaped() -> None:
    panel = Panel("a < b", "&", "s", [Bar("<x>", 10.0, False, [5.0, 20.0]), Bar("y", 5.0, True)])
    root = ElementTree.fromstring(drawn([panel]))
    whole, long, short = (float(r.attrib["width"]) for r in root.iter(SVG + "rect"))
    near, far = (float(c.attrib["cx"]) for c in root.iter(SVG + "circle"))
    assert long == 2 * short and far - near == pytest.approx(1.5 * long, abs=0.2) and far < whole
    assert {"a < b", "<x>", "&", "10 s", "5 s"} <= {t.text for t in root.iter(SVG + "text")}
