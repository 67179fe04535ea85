"""Modules of the tree by themselves: places, values and colours of made trees."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.page import documents as docs

pytestmark = pytest.mark.slow
Open = Callable[..., Page]
FROM = "/assets/js/tree"


def run(page: Page, body: str, argument: Any = None) -> Any:
    """Return what a function makes of an argument, with the modules of the tree at hand."""
    return page.evaluate(
        f"""async (given) => {{
          const {{ TreeModel, valueOf, isCall }} = await import("{FROM}/model.js");
          const {{ layout }} = await import("{FROM}/layout.js");
          const {{ scaleOf, inkOn }} = await import("{FROM}/scale.js");
          const {{ makeCard, paint, reasonOf }} = await import("{FROM}/card.js");
          const model = new TreeModel();
          if (given?.nodes) model.update({{ nodes: given.nodes }});
          {body}
        }}""",
        argument,
    )


def nodes(*parents: int, **more: dict[int, Any]) -> list[docs.Document]:
    """Return nodes below these parents, the root before them; `more` are values by node."""
    made = [docs.node(0, -1, "CONTEXT", "ask", policy_step=None)]
    made += [docs.node(i, parent, "POLICY", f"n{i}") for i, parent in enumerate(parents, 1)]
    for name, values in more.items():
        for i, value in values.items():
            made[i][name] = value
    return made


def test_parents_stand_amid_their_children_and_no_two_ends_on_a_row(view: Open) -> None:
    tree = nodes(0, 1, 1, 1, 0)  # a fork into one with three ends, and an end
    rows, columns = run(
        view("/runs"),
        """model.expandAll();
           const { items } = layout(model);
           const by = (name) => items.map((item) => item[name]);
           return [by("row"), by("column")];""",
        {"nodes": tree},
    )
    assert rows == [2, 1, 0, 1, 2, 3] and columns == [0, 1, 2, 2, 2, 1]


def test_many_children_are_behind_one_place_that_says_how_many(view: Open) -> None:
    items = run(
        view("/runs"),
        """for (const node of [model.root, model.root.children[0]]) model.open.add(node.key);
           return layout(model).items.map((item) => [item.more, item.row]);""",
        {"nodes": nodes(0, *[1] * 40, 0)},
    )
    *ends, more, below = items[2:]
    assert ends == [[0, row] for row in range(24)] and (more, below) == ([16, 24], [0, 25])


def test_what_a_person_folded_stays_folded_while_the_tree_grows(view: Open) -> None:
    tree = nodes(0, 1, 1, 0, 4, 4)
    opened = run(
        view("/runs"),
        """model.openUpTo(100);
           const fold = model.order.find((node) => node.data.i === 1);
           model.toggle(fold);
           model.update({ nodes: given.more });
           model.openUpTo(100);
           const open = [...model.nodes.values()].filter((node) => model.isOpen(node));
           return open.map((node) => node.data.i);""",
        {"nodes": tree, "more": nodes(0, 1, 1, 0, 4, 4, 1, 4)},
    )
    assert opened == [0, 4]


def test_few_rows_are_spent_on_the_largest_subtrees(view: Open) -> None:
    tree = nodes(0, 0, *[1] * 3, *[2] * 8)
    opened = run(
        view("/runs"),
        """model.openUpTo(10);
           return model.order.filter((node) => model.isOpen(node)).map((node) => node.data.i);""",
        {"nodes": tree},
    )
    assert opened == [0, 2]


def test_a_node_that_is_forked_later_is_the_same_node(view: Open) -> None:
    whole = nodes(0, start={1: 0}, stop={1: 8})
    forked = nodes(0, 1, 1, start={1: 0, 2: 4}, stop={1: 4, 2: 8})
    forked[2]["segment"] = whole[1]["segment"]
    fresh = run(
        view("/runs"),
        "return model.update({ nodes: given.forked });",
        {"nodes": whole, "forked": forked},
    )
    assert fresh == [f"{whole[1]['segment']}:4", f"{forked[3]['segment']}:0"]


def test_what_is_revealed_is_drawn_wherever_it_was(view: Open) -> None:
    keys, wanted = run(
        view("/runs"),
        """const node = [...model.nodes.values()].at(-1);
           model.closed.add(model.root.key);
           model.reveal(node);
           return [layout(model).items.map((item) => item.key), node.key];""",
        {"nodes": nodes(0, *[1] * 40, 41)},
    )
    assert wanted in keys


def test_arrows_lead_to_the_neighbours_that_they_point_at(view: Open) -> None:
    found = run(
        view("/runs"),
        f"""const {{ neighbour }} = await import("{FROM}/walk.js");
           model.expandAll();
           const {{ items }} = layout(model);
           const at = (i) => items.find((item) => item.node.data.i === i);
           const to = (i, key) => neighbour(items, null, at(i), key)?.node.data.i ?? null;
           const keys = ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"];
           return [5, 3, 1].map((i) => keys.map((key) => to(i, key)));""",
        {"nodes": nodes(0, 0, 1, 1, 2, 2)},  # two forks of two: 3 and 4, 5 and 6
    )
    assert found == [
        [4, 6, 2, None, 0, 6],
        [None, 4, 1, None, 0, 6],
        [None, 2, 0, 3, 0, 6],
    ]


def test_a_value_is_the_mean_of_the_scored_leaves_below(view: Open) -> None:
    leaves = {i: docs.leaf(reward) for i, reward in ((2, 1.0), (3, None), (4, 0.5))}
    values = run(
        view("/runs"),
        "return [...model.nodes.values()].map(valueOf);",
        {"nodes": nodes(0, 1, 1, 0, 0, leaf=leaves)},
    )
    assert values == [0.75, 1.0, 1.0, None, 0.5, None]


def test_a_call_is_one_before_its_answer_came_too(view: Open) -> None:
    tree = nodes(0, 0, 2, finish={1: "TOOL_CALL"}, kind={3: "TOOL"})
    calls = run(view("/runs"), "return [...model.nodes.values()].map(isCall);", {"nodes": tree})
    assert calls == [False, True, True, False]


@pytest.mark.parametrize("dark", [False, True])
def test_colours_go_from_the_lowest_to_the_highest_and_none_is_neither(
    view: Open, dark: bool
) -> None:
    tree = nodes(
        0, 0, 0, 0,
        value={1: 0.25, 2: 0.75, 3: 0.5},
        advantage={1: -0.2, 2: 0.6, 3: 0.0},
        entropy={1: 0.5, 2: 1.5, 3: 1.0},
    )  # fmt: skip
    found = run(
        view("/runs"),
        """const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
           const rgb = (hex) => `rgb(${[1, 3, 5].map((at) => part(hex, at)).join(" ")})`;
           const nodes = [...model.nodes.values()];
           return ["value", "advantage", "entropy"].map((measure) => {
             const scale = scaleOf(measure, [model], given.dark);
             return { ends: [scale.low, scale.high], stops: scale.stops.map(rgb), none: scale.none,
                      at: [scale.low, scale.high].map(scale.at),
                      nodes: nodes.map((node) => scale.colour(node)) };
           });""",
        {"nodes": tree, "dark": dark},
    )
    value, advantage, entropy = found
    assert value["ends"] == [0, 1] and entropy["ends"] == [0.5, 1.5]
    assert advantage["ends"] == [-0.6, 0.6], "what is neither better nor worse is in the middle"
    for scale in found:
        assert scale["at"] == [scale["stops"][0], scale["stops"][-1]]
        assert scale["nodes"][4] == scale["none"] and scale["none"] not in scale["nodes"][1:4]
    assert len(value["stops"]) % 2 == 1
    middle = advantage["stops"][len(advantage["stops"]) // 2]
    assert advantage["nodes"][3] == value["nodes"][3] == middle
    assert advantage["nodes"][2] == advantage["stops"][-1]
    assert entropy["nodes"][1:3] == [entropy["stops"][0], entropy["stops"][-1]]


def test_two_trees_have_one_scale(view: Open) -> None:
    ends = run(
        view("/runs"),
        """const other = new TreeModel();
           other.update({ nodes: given.other });
           const { low, high } = scaleOf("entropy", [model, other], false);
           return [low, high];""",
        {"nodes": nodes(0, entropy={1: 0.5}), "other": nodes(0, 0, entropy={1: 0.1, 2: 3.0})},
    )
    assert ends == [0.1, 3.0]


def luminance(colour: tuple[int, int, int]) -> float:
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_text_on_any_colour_can_be_read(view: Open) -> None:
    colours = [
        (r, g, b) for r in range(0, 256, 51) for g in range(0, 256, 51) for b in (0, 128, 255)
    ]
    inks = run(
        view("/runs"),
        "return given.map((c) => inkOn(`rgb(${c.join(' ')})`));",
        [*map(list, colours)],
    )
    for colour, ink in zip(colours, inks, strict=True):
        red, green, blue = (int(ink[at : at + 2], 16) for at in (1, 3, 5))
        other = luminance((red, green, blue))
        low, high = sorted((luminance(colour), other))
        assert (high + 0.05) / (low + 0.05) >= 4.3, (colour, ink)


def test_a_leafs_pill_is_its_reward_and_a_dash_without_one(view: Open) -> None:
    leaves = {i: docs.leaf(reward) for i, reward in ((1, 1.0), (2, None), (3, 0.0))}
    tree = nodes(0, 0, 0, leaf=leaves, value={1: 1.0, 3: 0.0}, advantage={1: 0.5, 3: -0.5})
    pills = run(
        view("/runs"),
        """const canvas = document.createElement("span");
           const known = (colour) => {
             canvas.style.background = colour;
             return canvas.style.background;
           };
           model.expandAll();
           return ["value", "advantage"].map((measure) => {
             const scale = scaleOf(measure, [model], false);
             return layout(model).items.slice(1).map((item) => {
               const card = makeCard(item, "x");
               paint(card, item, scale, { selected: false, fresh: false, open: true });
               const end = card.querySelector(".end");
               const { background } = end.style;
               const colours = [scale.colour(item.node), scale.none];
               return [end.textContent, ...colours.map((colour) => background === known(colour))];
             });
           });""",
        {"nodes": tree},
    )
    for measured in pills:
        assert measured == [["1.00", True, False], ["–", True, True], ["0.00", True, False]]


@pytest.mark.parametrize(
    ("why", "mark", "words"),
    [
        ("plan 3 of claim 2 forked it off after token 4", "fork", "Forked it off after token 4"),
        ("plan 3 of claim 2 forked it off; plan 4 of claim 2 pruned it", "cut", "Pruned it"),
        ("the tree policy ended the path: answered", "cut", "Ended the path: answered"),
    ],
)
def test_a_reason_is_a_fork_or_a_cut(view: Open, why: str, mark: str, words: str) -> None:
    found = run(view("/runs"), "return reasonOf({ why: given.why });", {"why": why})
    assert found == {"mark": mark, "words": words}
