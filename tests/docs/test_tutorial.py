"""The tutorial: its files are as its pages show them, and its commands print what they say."""

import re
from pathlib import Path

import pytest

from tests.cli.command import Said, banyan, process

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tutorial"
_BLOCK = re.compile(
    r"`(\w+\.(?:py|yaml))`((?:(?!`\w+\.(?:py|yaml)`|```).)*)```\w+\n(.*?)```", re.DOTALL
)


def files(page: str) -> dict[str, str]:
    """Return the files that a page shows: a name, then the next block of code."""
    return {found[0]: found[-1] for found in _BLOCK.findall((PAGES / page).read_text())}


def laid(folder: Path, *pages: str) -> Path:
    """Write the files of some pages into a folder, and their rows."""
    for page in pages:
        for name, text in files(page).items():
            (folder / name).write_text(text)
    exec(compile((folder / "make_rows.py").read_text(), "make_rows.py", "exec"), {})
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(done: Said[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_pages_show_the_files_that_they_name() -> None:
    assert set(files("own-reward.md")) == {"make_rows.py", "rewards.py", "letters.yaml"}
    assert set(files("own-environment.md")) == {"corridor.py", "make_rows.py", "corridor.yaml"}
    assert set(files("own-tree-policy.md")) == {"forks.py"}
    assert set(files("coming-from-trl.md")) == {"trl_reward.py", "from_trl.yaml"}


def test_no_page_has_a_place_that_was_not_filled() -> None:
    for page in PAGES.glob("*.md"):
        assert not re.findall(r"^(?:FILE:\S+|[A-Z]{4,})$", page.read_text(), re.MULTILINE), page


def test_the_own_reward_scores_as_the_page_says(here: Path) -> None:
    laid(here, "own-reward.md")
    page = (PAGES / "own-reward.md").read_text()
    shown = said(banyan("score", "letters.yaml", "--completion", "L C", "--row", "0", cwd=here))
    value = re.search(r"^ *reward: ([\d.]+)$", shown, re.MULTILINE)
    assert value and f"reward: {value[1]}" in page
    assert "160 rows to train on, 40 held out" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pages", "recipe", "rows"),
    [
        (("own-reward.md",), "letters.yaml", "160 rows to train on, 40 held out"),
        (("own-environment.md",), "corridor.yaml", "36 rows to train on, 9 held out"),
        (("own-reward.md", "coming-from-trl.md"), "from_trl.yaml", "160 rows to train on"),
    ],
)
def test_recipes_pass_their_trial(
    pages: tuple[str, ...], recipe: str, rows: str, here: Path
) -> None:
    laid(here, *pages)
    shown = said(process("train", recipe, "--dry-run", cwd=here))
    assert rows in shown and "are all valid" in shown


def test_the_own_tree_policy_saves_what_the_page_says(here: Path) -> None:
    laid(here, "own-reward.md", "own-tree-policy.md")
    settings = ("generate.policy=forks:Halves", "generate.settings={starts: 4, again: 1}")
    words = [word for setting in settings for word in ("--set", setting)]
    shown = said(banyan("simulate", "letters.yaml", *words, cwd=here))
    page = (PAGES / "own-tree-policy.md").read_text()
    for line in shown.splitlines()[:5]:
        assert f"    {line}" in page, line
    assert "generate.settings={width: 8}" in shown  # as many samples as a tree has leaves
    file = here / "forks.py"
    file.write_text(re.sub(r"    @property\n.*?\n\n", "", file.read_text(), flags=re.DOTALL))
    without = said(banyan("simulate", "letters.yaml", *words, cwd=here))
    assert "has no attribute width" in without and "generate.settings={width: 8}" in without


def test_the_own_environment_answers_as_the_page_says(here: Path) -> None:
    laid(here, "own-environment.md")
    words = ("tools", "corridor.yaml", "--row", "1", "--call", "right", "--call", "take")
    shown = said(process(*words, cwd=here))
    page = (PAGES / "own-environment.md").read_text()
    assert "the coin!" in shown
    assert [line for line in shown.strip().splitlines() if f"    {line}" not in page] == []
