"""`banyan trees draw`: an SVG picture whose boxes keep apart, and whose texts stay texts."""

import itertools
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from banyan.render.tree_svg import LONGEST, MOST_LEAVES, Line, drawn
from tests.cli.command import Said, banyan
from tests.cli.refusals import refused
from tests.system.test_made_before import STORED

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {SVG + name for name in ("svg", "title", "rect", "path", "text")}
TREE = "ef63ee7c99b593db"  # of the stored run
HOSTILE = '</text><script>alert(1)</script>&amp;<a href="x">\x00\x1b[2K\x9b\u202e\ufffe\uffff\ud800'


def boxes(picture: str) -> list[ElementTree.Element]:
    return [r for r in read(picture).iter(SVG + "rect") if r.get("class") == "node"]


def read(picture: str) -> ElementTree.Element:
    root = ElementTree.fromstring(picture.encode())
    assert {element.tag for element in root.iter()} <= ELEMENTS
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not any(name.startswith("on") or "href" in name for name in attributes)
    return root


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in read(picture).iter(SVG + "text")]


def box(element: ElementTree.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(element.attrib[n]) for n in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def lines(*parents: int) -> list[Line]:
    ends = set(range(len(parents))) - set(parents)
    return [
        Line(text=str(index), parent=parent, reward=1.0 if index in ends else None)
        for index, parent in enumerate(parents)
    ]


_NUMBERS = st.none() | st.floats()
_TEXTS = st.text(st.characters(codec=None), max_size=2 * LONGEST)
_GROWN = st.lists(
    st.tuples(st.integers(0, 2**31), _TEXTS, _NUMBERS, _NUMBERS), min_size=1, max_size=40
)


@given(_GROWN)
def test_boxes_of_any_tree_keep_apart_inside_the_picture(
    grown: list[tuple[int, str, float | None, float | None]],
) -> None:
    made = [
        Line(text=text, parent=above % i if i else -1, reward=reward, advantage=advantage)
        for i, (above, text, reward, advantage) in enumerate(grown)
    ]
    picture = drawn(made, "a tree")
    root, places = read(picture), [box(element) for element in boxes(picture)]
    assert len(places) == len(made)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height for x0, y0, x1, y1 in places)
    for (a0, b0, a1, b1), (c0, d0, c1, d1) in itertools.combinations(places, 2):
        assert a1 <= c0 or c1 <= a0 or b1 <= d0 or d1 <= b0


def test_ends_have_equal_distances_and_a_parent_its_childrens_mean_height() -> None:
    #       0 ── 1 ── 3, 4 ── 6
    #         └─ 2 ── 5
    places = [box(element) for element in boxes(drawn(lines(-1, 0, 0, 1, 1, 2, 4), ""))]
    heights = [(y0 + y1) / 2 for _, y0, _, y1 in places]
    three, six, five = heights[3], heights[6], heights[5]
    assert six - three == five - six > 0
    assert heights[4] == six and heights[2] == five and heights[1] == (three + six) / 2
    assert heights[0] == (heights[1] + heights[2]) / 2
    lefts = [x0 for x0, *_ in places]
    assert lefts[0] < lefts[1] == lefts[2] < lefts[3] == lefts[4] == lefts[5] < lefts[6]


def test_lines_are_wider_where_more_paths_go() -> None:
    picture = drawn(lines(-1, 0, 0, 1, 1, 1, 1), "")
    widths = [float(path.attrib["stroke-width"]) for path in read(picture).iter(SVG + "path")]
    assert widths[0] > widths[1] == widths[2] == widths[5]


def colours(*advantages: float | None) -> list[tuple[int, ...]]:
    made = [Line(text="prompt", parent=-1, advantage=None)]
    made += [Line(text="a", parent=0, reward=1.0, advantage=value) for value in advantages]
    fills = [element.attrib["fill"].lstrip("#") for element in boxes(drawn(made, ""))]
    return [tuple(bytes.fromhex(fill)) for fill in fills[1:]]


def test_better_is_green_worse_is_red_and_nothing_is_grey() -> None:
    best, better, worst, worse, zero, none = colours(1.0, 0.1, -1.0, -0.1, 0.0, None)
    assert all(green > max(red, blue) for red, green, blue in (best, better))
    assert all(red > max(green, blue) for red, green, blue in (worst, worse))
    assert best[0] < better[0] and worst[1] < worse[1], "the strongest credit is the darkest"
    assert zero == none and max(zero) - min(zero) < 8
    assert colours(0.5, -0.5) == colours(0.001, -0.001), "strength is relative"
    inf, nan = float("inf"), float("nan")
    assert colours(1.0, inf, nan, 1e-9) == [best, zero, zero, zero]


def test_a_box_says_its_value_or_reward_and_its_advantage() -> None:
    made = [
        Line(text="2 + 2", parent=-1, value=0.5),
        Line(text="a" * 40 + "\n= 4", parent=0, value=1.0, reward=1.0, advantage=0.25),
        Line(text="", parent=0, reward=float("nan")),
    ]
    words = texts(drawn(made, ""))
    assert words[:2] == ["2 + 2", "V 0.5"]
    assert words[2:4] == ["…" + "a" * 24 + "⏎= 4", "reward 1  A +0.250"]
    assert words[4:6] == ["∅", "unscorable"]
    assert "strongest: |A| = 0.250" in words


def test_a_models_text_is_no_markup_and_breaks_nothing() -> None:
    made = [Line(text=HOSTILE[start : start + LONGEST], parent=start - 1) for start in range(40)]
    picture = drawn(made, HOSTILE)
    words = " ".join([*texts(picture), read(picture)[0].text or ""])
    assert "<script>" not in picture and "<script>" in words and "␀␛[2K�����" in words


def test_a_picture_is_bounded() -> None:
    assert len(boxes(drawn(lines(-1, *[0] * MOST_LEAVES), ""))) == MOST_LEAVES + 1
    with pytest.raises(InvalidInput, match=r"257 leaves.*at most 256.*banyan trees show"):
        drawn(lines(-1, *[0] * (MOST_LEAVES + 1)), "")
    inside = [Line(text="", parent=number - 1, reward=0.0) for number in range(MOST_LEAVES + 1)]
    with pytest.raises(InvalidInput, match="257 leaves"):
        drawn(inside, "")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a stored run."""
    folder = tmp_path_factory.mktemp("drawn")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder / "state"


def draw(state: Path, *arguments: str | Path) -> Said[str]:
    return banyan("trees", "draw", *arguments, "--state", state)


def test_a_stored_tree_is_drawn(state: Path, tmp_path: Path) -> None:
    done = draw(state, TREE)
    assert done.returncode == 0, done.stderr
    assert TREE in (read(done.stdout)[0].text or "")
    words = texts(done.stdout)[: 2 * len(boxes(done.stdout))]
    wrong, right = ["8", "reward 0  A −0.500"], ["6", "reward 1  A +1.500"]
    assert words == ["3 + 3", "V 0.25", *wrong, *right, *wrong, *wrong]
    file = tmp_path / "tree.svg"
    assert draw(state, TREE, "-o", file).stdout == ""
    assert file.read_text(encoding="utf-8") == done.stdout


def test_a_tree_or_a_folder_that_is_missing_is_named(state: Path, tmp_path: Path) -> None:
    missing = draw(state, "0" * 16)
    assert missing.returncode == 1 and "there is no tree" in missing.stderr
    refused(draw(tmp_path, TREE), "holds no store")
