"""A tree's picture and its details in numbers: widths of branches, colours of tokens, scores."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page import documents as docs
from tests.page.fake import Fake
from tests.page.test_modules import nodes

pytestmark = pytest.mark.slow
Open = Callable[..., Page]


def test_branches_are_as_wide_as_they_have_paths_and_policies_are_named(
    view: Open, fake: Fake
) -> None:
    tree = nodes(
        0, *[1] * 9, 0,
        paths={0: 10, 1: 9}, value=dict.fromkeys(range(12), 0.5),
        policy_step={1: 7, **dict.fromkeys(range(2, 12), 8), 5: 9},
        leaf={i: docs.leaf(0.5) for i in range(2, 12)},
    )  # fmt: skip
    fake.gateway.trees["small"] = docs.tree("small", tree)
    page = view("/trees/small")
    expect(page.locator(".card.prompt")).to_be_visible()
    expect(page.locator(".caption")).to_contain_text("policies of steps 7 to 9")
    page.evaluate(
        """() => {
          window.widths = [];
          const drawn = CanvasRenderingContext2D.prototype.stroke;
          CanvasRenderingContext2D.prototype.stroke = function () {
            window.widths.push(this.lineWidth);
            drawn.call(this);
          };
        }"""
    )
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_timeout(600)
    widths = page.evaluate("widths.slice(-11)")
    assert len(widths) == 11 and widths[0] > 2 * widths[-1] >= 2 * 1.5, widths


def test_a_part_of_a_segment_shows_its_own_tokens_each_in_its_colour(
    view: Open, fake: Fake
) -> None:
    old = fake.gateway.trees["small"]
    made = [dict(one) for one in old["nodes"]]
    chosen = next(one for one in made if one["leaf"] is not None)
    chosen |= {"start": 2, "stop": 5, "text": "Let x be the price of one pen. So it is 42."}
    fake.gateway.trees["small"] = old | {"nodes": made}
    tokens = docs.segment(chosen, "small")["tokens"][2:5]
    page = view(f"/trees/small?segment={chosen['segment']}")
    heat = page.locator(".panel .heat")
    expect(heat).to_have_text("".join(token["text"] for token in tokens))
    expect(page.locator(".panel")).to_contain_text("Tokens 2 to 5 of the segment's")
    coloured = page.evaluate(
        """[...CSS.highlights].filter(([name]) => name.startsWith("heat-")).flatMap(([name, set]) =>
          [...set].map((one) => [one.startOffset, one.endOffset, Number(name.slice(5))]))"""
    )
    wanted, at = [], 0
    for token in tokens:
        bucket = min(5, int(token["logprob"] / -5 * 6))
        if bucket:
            wanted.append([at, at + len(token["text"]), bucket])
        at += len(token["text"])
    assert wanted and sorted(coloured) == wanted


def test_a_score_that_is_missing_is_shown_as_such(view: Open, fake: Fake) -> None:
    old = fake.gateway.trees["small"]
    made = [dict(one) for one in old["nodes"]]
    chosen = next(one for one in made if one["leaf"] is not None)
    chosen["leaf"] = docs.leaf(None)
    fake.gateway.trees["small"] = old | {"nodes": made}
    page = view(f"/trees/small?segment={chosen['segment']}")
    score = page.locator(".panel .score")
    expect(score.locator(".figure").first).to_have_text("unscorable")
    expect(score).to_contain_text("TIMEOUT: the sandbox took longer than 10 s")
    expect(score.locator(".score-head")).to_contain_text("in 10.0 s")
    scored = next(one for one in made if one["leaf"] and one["leaf"]["reward"] is not None)
    page.goto(f"{fake.address}/trees/small?segment={scored['segment']}")
    expect(score.locator(".score-head")).to_contain_text("in 3.4 ms")
