"""The counts of `banyan simulate`; each recipe shows the use of its tree policy."""

from pathlib import Path

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.payoff.shape import shape_of
from banyan.payoff.tokens import TreeTokens
from banyan.payoff.verdict import notes, verdicts
from banyan.recipe import Recipe
from banyan.recipe_loader.load import load, parse, resolve
from bench.saving import shaped
from services.rollout.simulation.simulate import simulate

ALL = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))
# Environments that run code are simulated by none (below).
RECIPES = [path for path in ALL if not path.stem.startswith("textworld")]
# For each policy with its recipe's settings: leaves, least forks, and saving, by hand or bounds.
SHOWN = {
    # Half of 16 samples go on after token 3; the tokens of the others count.
    "arrol": (8, 0, 1 - (16 * 3 + 8 * 5) / (8 * 8)),
    "dars": (None, 0, (0.0, 0.0)),
    # Each of 4 chains forks once, at token 7 of 12, into 4.
    "echo": (16, 4, 1 - (4 * 12 + 12 * 5) / (16 * 12)),
    "eptree": (30, 6, 1 / 5),  # of 5 leaves a chain two share 4 of 8 tokens, and two share none
    "ets": (16, 1, 0.0),  # each step is sampled 16 times: what it spares is memory
    "iid": (None, 0, 0.0),
    "latr": (8, 2, (0.2, 1.0)),
    "rose": (8, 1, (0.0, 7 / 8)),
    "rounds": (16, 0, 0.0),
    "scope": (8, 2, 1 - (8 * 3 + 2) / (8 * 3)),  # two are repaired, and sample their end again
    "tree-grpo": (6, 1, (0.0, 1.0)),
    "treepo": (16, 1, shaped(6)),
    "treepo-eager": (None, 1, None),  # as many leaves, and levels, as each recipe says
    # Each of 4 calls, of 5 tokens, is answered once for two paths of 40.
    "turns": (8, 4, 1 - (4 * 5 + 8 * 35) / (8 * 40)),
}
# For each recipe with a verdict: the reasons why its trees cannot pay. All have answers of 8 or 12
# tokens.
CANNOT_PAY = {
    # Stopped samples cost tokens and are no leaves; the others share their prompt.
    "arrol": ["no-fork"],
    "echo": ["short-answers"],
    "echo-whole": ["short-answers"],
    "eptree": ["short-answers"],
    "ets": ["nothing-saved", "short-answers"],  # each step is sampled `width` times
    "latr": ["short-answers"],
    "rose": ["nothing-saved", "short-answers"],  # 2 forks for 8 leaves: 4.7 %
    "tree-grpo": ["short-answers"],
    "treepo": ["short-answers"],  # they save 35 %, of leaves that are much alike
    "treepo-eager": ["short-answers"],
    "treepo-whole": ["short-answers"],
}
# Those without: `calculator` forks behind answers of a tool, and saves 6 % on paths of 40 tokens;
# the trees of the others named here fork inside answers of 24 to 192 tokens.
# All others share nothing by purpose: independent samples; `dars`, `scope` and `xrpo`, whose scores
# or growth budget decide where samples go, which no simulation tells.
PAYS = {"calculator", "extraction", "mmath", "programs", "quickstart", "word-problems"}
# Recipes with forks whose estimator compares whole leaves.
PER_LEAF = {"calculator", "echo", "echo-whole", "latr", "scope", "tree-grpo"}
BASE = {"name": "x", "model": "none", "task": {"name": "arithmetic"}}


def test_independent_samples_save_nothing():
    generate = {"policy": "iid", "settings": {"width": 6}, "max_new_tokens": 9}
    result = simulate(resolve({**BASE, "generate": generate}))
    script = "a or b, evenly, to the limit of the path"
    assert result == {
        "leaves": 6,
        "forks": 0,
        "sampled_tokens": 54,
        "iid_tokens": 54,
        "saved": 0.0,
        "script": script,
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_shows_what_its_tree_policy_is_for(path: Path) -> None:
    recipe = load(path)
    counts, policy = simulate(recipe), recipe.generate.policy
    leaves, forks, saved = SHOWN[policy]
    if leaves is None:
        tree_policy = registry.build("generate", policy, recipe.generate.settings)
        leaves = recipe.generate.trees * tree_policy.width
    assert counts["leaves"] == leaves or (policy == "dars" and 8 <= counts["leaves"] <= 32)
    assert counts["forks"] >= forks and (forks or not counts["forks"])
    if saved is None:
        saved = shaped(recipe.generate.settings["max_depth"], leaves)
    if isinstance(saved, tuple):
        assert saved[0] <= counts["saved"] <= saved[1]
    else:
        assert counts["saved"] == pytest.approx(saved)


def tokens(recipe: Recipe) -> TreeTokens:
    counts = simulate(recipe)
    return TreeTokens(
        leaves=counts["leaves"],
        forks=counts["forks"],
        sampled=counts["sampled_tokens"],
        paths=counts["iid_tokens"],
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_whose_trees_cannot_pay_says_why(path: Path) -> None:
    recipe = load(path)
    shape, grown = shape_of(recipe), tokens(recipe)
    assert [reason.name for reason in verdicts(shape, grown)] == CANNOT_PAY.get(path.stem, [])
    assert shape.judged == (path.stem in CANNOT_PAY.keys() | PAYS)
    assert bool(notes(shape, grown)) == (path.stem in PER_LEAF)


@pytest.mark.parametrize("name", ["ets", "tree-grpo", "treepo", "treepo-eager"])
def test_a_stretch_as_long_as_the_answer_makes_trees_without_a_fork(name: str) -> None:
    text = next(path for path in RECIPES if path.stem == name).read_text()
    setting = shape_of(parse(text)).stretch
    assert setting is not None
    recipe = parse(text, [f"generate.settings.{setting.name}=24", "generate.max_new_tokens=24"])
    (reason,) = verdicts(shape_of(recipe), tokens(recipe))
    assert reason.name == "no-fork" and f"{setting.name} is 24" in reason.words
    recipe = parse(text, [*reason.changes[0], "generate.max_new_tokens=24"])
    assert tokens(recipe).forks > 0, "the change makes some"


@pytest.mark.parametrize("name", CANNOT_PAY)
def test_a_recipe_takes_the_changes_of_its_verdicts(name: str) -> None:
    text = next(path for path in RECIPES if path.stem == name).read_text()
    for reason in verdicts(shape_of(parse(text)), tokens(parse(text))):
        for change in reason.changes:
            recipe = parse(text, change)
            assert verdicts(shape_of(recipe), tokens(recipe)) == []


def test_an_environment_that_runs_code_is_not_simulated() -> None:
    for path in set(ALL) - set(RECIPES):
        with pytest.raises(InvalidInput, match="runs code, for which a simulation has no jail"):
            simulate(load(path))


def test_a_policy_that_goes_on_by_scores_shows_what_it_does_at_any_accuracy() -> None:
    recipes = {path.stem: path for path in RECIPES}
    leaves = simulate(load(recipes["dars"]))["leaves_by_accuracy"]
    assert list(leaves) == ["0", "0.25", "0.5", "0.75", "1"]
    assert leaves["0"] == 32 and leaves["1"] == 8
    assert list(leaves.values()) == sorted(leaves.values(), reverse=True)
    repaired = simulate(load(recipes["scope"]))
    assert set(repaired["leaves_by_accuracy"].values()) == {8}
    assert repaired["forks"] == 2, "two are put right"


def test_a_binary_tree_of_depth_four_saves_more_than_half():
    settings = {"segment": 8, "max_depth": 4, "width": 16}
    generate = {"policy": "treepo", "settings": settings, "max_new_tokens": 32, "trees": 3}
    result = simulate(resolve({**BASE, "generate": generate}))
    assert result["leaves"] == 48 and result["sampled_tokens"] == 3 * 8 * 30
    assert result["saved"] == pytest.approx(0.53125)


def test_a_simulation_that_would_not_end_says_what_to_make_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.rollout.simulation.simulate._MOST_TOKENS", 20_000)
    generate = {"policy": "iid", "settings": {"width": 4}, "max_new_tokens": 1_000_000}
    says = r"a simulation ends at 20000; generate\.max_new_tokens is 1000000"
    with pytest.raises(InvalidInput, match=says):
        simulate(resolve({**BASE, "generate": generate}))


def test_scripted_settings_of_the_recipe_are_used():
    resources = {"engine": "scripted", "engine_settings": {"accuracy": 1.0, "latency_s": 9.0}}
    result = simulate(
        resolve({**BASE, "generate": {"settings": {"width": 4}}, "resources": resources})
    )
    assert result["sampled_tokens"] == 4 * len("12") + 4  # 7 + 5, and the end


def waiting(accuracy: float | None, **more: object) -> dict:
    settings = {"accuracy": accuracy} if accuracy is not None else {"chain": {"": {"a": 1.0}}}
    generate = {"policy": "dars", "settings": {"width": 8, "max_width": 32}}
    return {
        **BASE,
        "generate": generate,
        "resources": {"engine": "scripted", "engine_settings": settings},
        **more,
    }


def test_a_policy_that_waits_for_scores_gets_those_of_the_scripted_sums():
    assert (
        simulate(resolve(waiting(0.0)))["leaves"] == 32
        and simulate(resolve(waiting(1.0)))["leaves"] == 8
    )
    with pytest.raises(InvalidInput, match=r"set engine_settings\.accuracy"):
        simulate(resolve(waiting(None)))


def test_a_deterministic_run_does_not_wait_for_scores():
    with pytest.raises(InvalidInput, match="set deterministic: false"):
        resolve(waiting(0.5, deterministic=True))


def test_a_tree_that_grows_by_rooms_gets_what_its_prompt_brings():
    control = {"rooms": "xrpo", "rooms_settings": {"rollouts": 12}}
    generate = {"policy": "rounds", "settings": {"start": 4, "most": 20}, "max_new_tokens": 9}
    assert simulate(resolve({**BASE, "generate": generate, "control": control}))["leaves"] == 12


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"control": {}}, "set control.rooms"),
        ({"generate": {"policy": "iid"}}, "needs a tree policy that asks for growth budget"),
        ({"generate": {"policy": "rounds", "trees": 2}}, "set generate.trees: 1"),
        (
            {"generate": {"policy": "rounds", "settings": {"most": 12}}},
            "must lie between start=4 and most=12",
        ),
        (
            {"control": {"rooms": "xrpo", "rooms_settings": {"alpha": 2.0}}},
            "alpha must lie between 0 and 1",
        ),
        ({"control": {"rooms": "share"}}, "there is no rooms plugin"),
    ],
)
def test_rooms_and_policies_that_do_not_fit_are_refused(change: dict, problem: str):
    with pytest.raises(InvalidInput, match=problem):
        resolve({**BASE, "generate": {"policy": "rounds"}, "control": {"rooms": "xrpo"}, **change})


def test_a_policy_that_never_ends_is_named():
    with pytest.raises(InvalidInput, match="never says that its tree is done; it has 0 leaves"):
        simulate(
            resolve(
                {
                    **BASE,
                    "generate": {
                        "policy": "tests.rollout.growing:Failing",
                        "settings": {"after": 99},
                    },
                }
            )
        )
