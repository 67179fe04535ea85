"""Previews of control by `banyan simulate`: every recipe, and each kind of control."""

from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Allocation
from banyan.recipe_loader.load import load
from services.gateway.preview import simulated_run
from services.gateway.preview.preview import preview
from services.gateway.preview.simulated_rollouts import Chances
from services.gateway.preview.simulated_run import MOST_STEPS, SimulatedRun

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def figures(name: str, *overrides: str) -> dict[str, Any]:
    return preview(load(RECIPES / f"{name}.yaml", overrides), Path.cwd())


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_trains_whole_batches(name: str) -> None:
    recipe, shown = load(RECIPES / f"{name}.yaml"), figures(name)
    assert (
        shown["steps"] == MOST_STEPS
        and shown["groups_trained"] == MOST_STEPS * recipe.control.groups_per_batch
    )
    assert shown["groups_opened"] >= shown["groups_trained"] + shown["groups_dropped"]
    assert shown["oldest_in_steps"] <= max(recipe.control.max_staleness, 1)
    assert shown["rollouts_least"] <= shown["rollouts_per_group"] <= shown["rollouts_most"]
    assert "nothing is learnt" in shown["not_simulated"]
    assert shown == figures(name), "the same seed shows the same"


def test_plain_control_carries_nothing_over() -> None:
    shown = figures("quickstart")
    assert shown["groups_opened"] == shown["groups_trained"] and not shown["groups_dropped"]
    assert not shown["groups_carried_over_per_step"] and not shown["oldest_in_steps"]
    assert (shown["rollouts_least"], shown["rollouts_most"]) == (8, 8)


def test_over_provision_carries_long_groups_over_and_makes_steps_shorter() -> None:
    april = figures("april")
    plain = figures("april", "control.over_provision=0", "control.max_staleness=0")
    assert april["groups_carried_over_per_step"] > 1 and april["oldest_in_steps"] >= 1
    assert april["ticks_per_step"] < plain["ticks_per_step"]


def test_redundancy_gives_trees_up_and_makes_steps_shorter() -> None:
    spare, plain = figures("redundancy"), figures("redundancy", "control.redundancy=0")
    assert spare["trees_given_up"] == 2 * spare["groups_trained"] and "trees_given_up" not in plain
    assert spare["ticks_per_step"] < plain["ticks_per_step"]
    assert spare["rollouts_per_group"] == plain["rollouts_per_group"] == 8


def test_groups_that_became_stale_are_dropped() -> None:
    kept, dropped = (
        figures("april", "control.over_provision=16", f"control.stale_groups={how}",
             "control.max_staleness=1")
        for how in ("keep", "drop")
    )  # fmt: skip
    assert dropped["groups_dropped"] > 0 == kept["groups_dropped"]
    assert dropped["oldest_in_steps"] <= 1


def test_dots_chooses_groups_that_teach() -> None:
    """They are compared with its own references, which are drawn."""
    assert "predicted success" in figures("dots")["last_reason"] and "last_reason" not in figures(
        "quickstart"
    )
    taught: dict[bool, list[bool]] = {True: [], False: []}
    for seed in range(4):
        run = SimulatedRun(load(RECIPES / "dots.yaml", [f"seed={seed}"]), Path.cwd())
        while run.step < run.steps:
            run.advance()
        for _, group in run.trained:
            taught["predicted" in group.allocation.why].append(len(set(group.rollouts.rewards)) > 1)
    assert sum(taught[True]) / len(taught[True]) > sum(taught[False]) / len(taught[False]) + 0.05


def test_what_replay_lends_is_left_out_and_said() -> None:
    assert (
        "replay" in figures("dots-replay")["not_simulated"]
        and "replay" not in figures("dots")["not_simulated"]
    )


def test_dart_gives_mastered_rows_fewer_and_shorter_rollouts() -> None:
    shown = figures("dart")
    assert (
        shown["rollouts_least"] < 8 == shown["rollouts_most"]
        and shown["groups_with_shorter_paths"] > 0
    )


def test_rooms_share_the_same_rollouts_out_unevenly() -> None:
    shown = figures("xrpo", "control.curriculum=uniform")
    assert (
        shown["rollouts_per_group"] == 16 and shown["rollouts_least"] < 16 < shown["rollouts_most"]
    )


def test_solved_examples_come_before_what_failed() -> None:
    assert figures("xrpo")["groups_with_solved_examples"] > 0


def test_what_is_not_simulated_is_said() -> None:
    assert "dars goes on by scores" in figures("dars")["not_simulated"]
    assert "filter majority" in figures("ttrl")["not_simulated"]


def test_large_batches_are_shown_for_fewer_steps() -> None:
    assert figures("quickstart", "control.groups_per_batch=2000")["steps"] == 5


def test_a_curriculum_that_raises_is_named() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"control\.curriculum tests\.gateway\.curriculum_doubles:Rude: ZeroDivisionError",
    ):
        figures("quickstart", "control.curriculum=tests.gateway.curriculum_doubles:Rude")


def build_instead(monkeypatch: pytest.MonkeyPatch, part: str, plugin: Any) -> None:
    """Let the registry return `plugin` for every name of a part."""
    build = simulated_run.registry.build

    def replaced(wanted: str, name: str, settings: Any) -> Any:
        return plugin if wanted == part else build(wanted, name, settings)

    monkeypatch.setattr(simulated_run.registry, "build", replaced)


class Odd:
    """A user's tree policy or curriculum, whose attributes mean something else to them."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def plan(self, view: Any, room: Any, rng: Any) -> Any:
        raise AssertionError("no tree is grown")

    def allocate(self, stats: Any, budget: Any, rng: Any) -> list[Allocation]:
        return [Allocation(row=0, why="\x1b[31mred\nmore") for _ in budget.ordinals]


@pytest.mark.parametrize(
    ("width", "rollouts"), [("many", 1), ((2, 4), 1), (0, 1), (-2, 1), (0.5, 1), (3, 3)]
)
def test_a_width_that_is_none_counts_as_one(
    monkeypatch: pytest.MonkeyPatch, width: Any, rollouts: int
) -> None:
    recipe = load(RECIPES / "quickstart.yaml", ["budget.steps=1"])
    build_instead(monkeypatch, "generate", Odd(width=width))
    assert preview(recipe, Path.cwd())["rollouts_per_group"] == rollouts


def test_what_a_curriculum_says_is_checked_and_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(RECIPES / "quickstart.yaml", ["budget.steps=1"])
    curriculum = Odd(right="abc")
    build_instead(monkeypatch, "control", curriculum)
    with pytest.raises(
        InvalidInput,
        match=r"control.curriculum uniform, right: ValueError: could not convert .*'abc'",
    ):
        preview(recipe, Path.cwd())
    curriculum.right = 0.5  # type: ignore[attr-defined]
    assert preview(recipe, Path.cwd())["last_reason"] == " [31mred more"


def test_a_preview_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_run, "_MOST_S", -1.0)
    for name in ("quickstart", "xrpo"):
        with pytest.raises(
            InvalidInput,
            match=r"control is not previewed after .* at step 0 of 12; --set fewer groups",
        ):
            figures(name)


def test_rows_whose_prompts_read_the_same_have_any_chance() -> None:
    chances = [Chances(0, ["aa", "AA", "aa "]).of(row) for row in range(3)]
    assert len(set(chances)) == 3 and all(0.0 < chance < 1.0 for chance in chances)


def test_rows_that_nobody_looks_at_are_not_counted() -> None:
    assert "rows" not in figures("quickstart") and figures("dots")["rows"] == 32
