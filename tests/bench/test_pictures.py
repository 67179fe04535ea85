"""The picture in docs shows the recorded figures."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

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
    assert [(bar.length, sorted(bar.dots)) for bar in until.bars] == [
        (107.9, [100.5, 107.9, 261.7]),
        (20.5, [17.3, 20.5, 32.0]),
    ]
    assert [(bar.length, bar.dots) for bar in step.bars] == [(8.77, ()), (2.99, ())]


def test_a_naive_loop_that_was_measured_has_a_bar_between_the_others() -> None:
    learning = KNOWN["trl/learning"]
    columns = [*learning.columns, "naive loop: stays at 90 % from"]
    ends = zip(learning.rows, (7, 9, 8.5), strict=True)
    rows = [[*row, f"step 9, {seconds} s"] for row, seconds in ends]
    (until, _) = panels({**KNOWN, "trl/learning": replace(learning, columns=columns, rows=rows)})
    assert [bar.name for bar in until.bars] == ["GRPOTrainer of TRL", "naive loop", "Banyan"]
    assert (until.bars[1].length, until.bars[1].dots) == (8.5, [7.0, 9.0, 8.5])


def test_a_run_that_did_not_stay_has_no_bar() -> None:
    learning = KNOWN["trl/learning"]
    cells = ["never" if column.startswith("TRL: stays") else "1.0 s" for column in learning.columns]
    with pytest.raises(ValueError, match="'never' has no seconds"):
        panels({**KNOWN, "trl/learning": replace(learning, rows=[cells])})


def test_lengths_are_on_one_scale_and_words_are_escaped() -> None:
    panel = Panel("a < b", "&", "s", [Bar("<x>", 10.0, False, [5.0, 20.0]), Bar("y", 5.0, True)])
    root = ElementTree.fromstring(drawn([panel]))
    whole, long, short = (float(r.attrib["width"]) for r in root.iter(SVG + "rect"))
    near, far = (float(c.attrib["cx"]) for c in root.iter(SVG + "circle"))
    assert long == 2 * short and far - near == pytest.approx(1.5 * long, abs=0.2) and far < whole
    assert {"a < b", "<x>", "&", "10 s", "5 s"} <= {t.text for t in root.iter(SVG + "text")}
