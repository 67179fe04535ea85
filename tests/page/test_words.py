"""Words and numbers of the page: times, shares, series of metrics, texts that hide something."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.page import documents as docs

pytestmark = pytest.mark.slow
Open = Callable[..., Page]


def run(page: Page, body: str, argument: Any = None) -> Any:
    """Return what a function makes of an argument, with modules of the page at hand."""
    return page.evaluate(
        f"""async (given) => {{
          const {{ duration, percent, signed, number, bytes }} =
            await import("/assets/js/format.js");
          const {{ plain, beginning }} = await import("/assets/js/text.js");
          const {{ Metrics, savedShare }} = await import("/assets/js/series.js");
          const {{ treesOfStep }} = await import("/assets/js/paths.js");
          const {{ textOf }} = await import("/assets/js/tree/model.js");
          {body}
        }}""",
        argument,
    )


def test_times_and_numbers_are_as_people_read_them(view: Open) -> None:
    found = run(
        view("/runs"),
        """return [
             [59, 200, 7500, 172800, null].map(duration),
             [percent(0.878), signed(-0.5), signed(0.25), number(12345), number(0.00012)],
             [512, 2048, 734003200].map(bytes),
           ];""",
    )
    assert found == [
        ["59 s", "3 min 20 s", "2 h 5 min", "2 days", "–"],
        ["87.8 %", "−0.50", "+0.25", "12,345", "1.2e-4"],
        ["512 B", "2.0 KiB", "700.0 MiB"],
    ]


def test_series_are_in_order_and_evaluations_have_their_bounds(view: Open) -> None:
    steps = [{"step": n, "reward": n / 10, "unique_tokens": 25, "path_tokens": 100} for n in (2, 1)]
    found = run(
        view("/runs"),
        """const metrics = new Metrics();
           metrics.add({ steps: given.steps, evaluations: given.evaluations });
           const { data, last, kind } = metrics.heldOut();
           return [metrics.series("reward", savedShare), data, last.label, kind,
                   [3, 4].map((step) => metrics.missing([{ step }]))];""",
        {"steps": steps, "evaluations": docs.evaluations(40)},
    )
    series, accuracy, last, kind, missing = found
    assert series == [[1, 2], [0.1, 0.2], [0.75, 0.75]]
    step, right, low, high = accuracy
    assert (step, right) == ([0, 2, 20], [0.46, 0.944, 0.81])
    assert all(a < b < c for a, b, c in zip(low, right, high, strict=True))
    assert (last, kind, missing) == ("step-20-greedy", "greedy", [False, True])


def test_graded_rewards_are_no_accuracy_and_an_older_result_has_its_step(view: Open) -> None:
    evaluations = docs.evaluations(19)
    found = run(
        view("/runs"),
        """return [given, given.map((one) => ({ ...one, mean_reward: 0.7 }))].map((evaluations) => {
             const metrics = new Metrics();
             metrics.add({ steps: [{ step: 1 }, { step: 19 }], evaluations });
             const { name, value, step, data } = metrics.heldOut();
             return [name, value, step, data.slice(2)];
           });""",
        evaluations,
    )
    low, high = evaluations[0]["wilson_95"]
    assert found[0] == ["Held-out accuracy", 0.46, 0, [[low], [high]]]
    assert found[1] == ["Held-out reward", 0.7, 0, [[None], [None]]]


def test_the_trees_of_a_step_are_those_that_it_trained_on(view: Open) -> None:
    paths = run(view("/runs"), "return [0, 1, 8].map((step) => treesOfStep('a b', step));")
    assert paths == [f"/runs/a%20b/trees?step={n}" for n in (0, 1, 8)]


def test_a_part_without_a_text_of_its_own_says_so(view: Open) -> None:
    data = {"start": 2, "stop": 5, "text": "all of it"}
    words = run(
        view("/runs"),
        "return ['segment', 'node'].map((of) => textOf({ data: { ...given, text_of: of } }));",
        data,
    )
    assert words == ["tokens 2 to 5 of “all of it”", "all of it"]


def test_half_characters_and_marks_of_direction_are_written_out(view: Open) -> None:
    found = run(
        view("/runs"),
        r"""const texts = ["a\ud83c", "\udf33b", "\ud83c\udf33", "\u202ex", "\u2067y", "nul\u0000"];
           return [...texts, "\u200bz"].map(plain);""",
    )
    assert found == ["a⟨D83C⟩", "⟨DF33⟩b", "🌳", "⟨202E⟩x", "⟨2067⟩y", "nul␀", "⟨200B⟩z"]


@pytest.mark.parametrize(
    ("href", "tag", "target"),
    [
        ("/runs/r", "A", None),
        ("https://docs.example.org/x", "A", "_blank"),
        ("javascript:alert(1)", "SPAN", None),
        ("JaVaScRiPt:alert(1)", "SPAN", None),
        ("data:text/html,<script>alert(1)</script>", "SPAN", None),
        ("http://[", "SPAN", None),
    ],
)
def test_only_addresses_of_pages_are_links(
    view: Open, href: str, tag: str, target: str | None
) -> None:
    made = run(
        view("/runs"),
        """const { link } = await import("/assets/js/dom.js");
           const element = link(given, "<b>words</b>");
           const { tagName, textContent, childElementCount } = element;
           return [tagName, element.getAttribute("target"), textContent, childElementCount];""",
        href,
    )
    assert made == [tag, target, "<b>words</b>", 0]
