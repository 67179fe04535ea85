"""Recipes: defaults, overrides, and one clear message with the line for every error."""

import json
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_loader.load import load, parse, resolve
from banyan.segment import Sampling

ARITHMETIC = Path(__file__).parents[2] / "recipes" / "arithmetic.yaml"
CORRIDOR = "environment: {name: 'corridor:Corridor', end: <go>}\n"
MINIMAL = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"


def test_every_recipe_that_comes_with_banyan_loads() -> None:
    for path in sorted(ARITHMETIC.parent.glob("*.yaml")):
        assert load(path).name == path.stem


def test_rows_of_a_file_need_no_reward_beside_scorers() -> None:
    rows = MINIMAL.replace("arithmetic", "file, path: rows.jsonl")
    assert parse(rows + "filter: [{name: environment}]\n" + CORRIDOR).scorers == ["environment"]


def test_set_goes_over_the_file() -> None:
    recipe = load(ARITHMETIC, ["budget.steps=3", "generate.settings.width=2", "deterministic=true"])
    assert (recipe.budget.steps, recipe.generate.settings, recipe.deterministic) == (
        3,
        {"width": 2},
        True,
    )


def test_a_logit_bias_is_the_same_through_json() -> None:
    text = (
        MINIMAL + "generate: {logit_bias: {9: 0.1, 5: -1, 7: 0}}\nallow_truncated_sampling: true\n"
    )
    recipe = parse(text.replace("-1,", "-1.0,").replace("0}}", "0.0}}"))
    repeated = resolve(json.loads(recipe.model_dump_json()))
    assert recipe.generate.bias == repeated.generate.bias == ((5, -1.0), (9, 0.10000000149011612))
    Sampling(bias=recipe.generate.bias)  # the one form that segments keep


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "optimize: {}\n", r"line 4: optimize: unknown key; did you mean optimise"),
        (
            MINIMAL + "budget: {stepz: 1}\n",
            r"line 4: budget.stepz: unknown key; did you mean steps",
        ),
        (MINIMAL + "budget: {zz: 1}\n", r"line 4: budget.zz: unknown key; known: steps, minutes"),
        (MINIMAL + "filter: [{nam: x}]\n", r"filter.0.nam: unknown key; did you mean name"),
        (
            MINIMAL + "replay: {fractio: 1.0}\n",
            r"replay.fractio: unknown key; did you mean fraction",
        ),
        (MINIMAL + "budget:\n  steps: many\n", r"line 5: budget.steps: .*integer.*'many'"),
        (MINIMAL + "budget: {steps: 0}\n", r"line 4: budget.steps: must be at least 1 \(got 0\)"),
        ("name: x\nmodel: m\n", r"task: is missing"),
        (MINIMAL + "generate: {policy: nope}\n", r"no generate plugin 'nope'; known: .*iid, "),
        (MINIMAL + "generate: {settings: {wide: 3}}\n", r"'iid' has no setting 'wide'; it has"),
        (MINIMAL + "generate: {top_p: 0.5}\n", r"allow_truncated_sampling"),
        (MINIMAL + "generate: {stop: ['']}\n", r"generate.stop.0: must not be empty"),
        (
            MINIMAL + "generate: {settings: {width: 4097}}\n",
            r"iid .* trees of 4097 leaves; a tree has at most 4096: .*by generate.trees",
        ),
        (
            MINIMAL + "generate: {logit_bias: {5: -1.0}}\n",
            r"logit_bias .*allow_truncated_sampling: true",
        ),
        (MINIMAL + "generate: {logit_bias: {word: -1.0}}\n", r"generate.logit_bias.word.*integer"),
        (MINIMAL + "generate: {logit_bias: {5: -101.0}}\n", r"at least -100"),
        (
            MINIMAL
            + "generate: {logit_bias: {5: 1.0}}\nallow_truncated_sampling: true\n"
            + "resources: {engine: vllm}\n",
            r"generate.logit_bias needs resources.engine torch",
        ),
        (MINIMAL + "generate: {temperature: 0}\n", r"temperature 0"),
        (
            MINIMAL + "resources: {weights: nccl}\n",
            r"line 4: resources: weights nccl .* of engine vllm, .*use file",
        ),
        (
            MINIMAL
            + "optimise: {lora: {rank: 2}}\n"
            + "resources: {weights: nccl, engine: vllm, engine_settings: {lora_rank: 2}}\n",
            r"lora_rank has vLLM take adapters.*set resources.weights to file or nats",
        ),
        (
            MINIMAL
            + "resources: {weights: nccl, engine: vllm, engine_settings: {arguments: "
            + "{data_parallel_size: 2}}}\n",
            r"line 4: resources: weights nccl takes no "
            r"engine_settings.arguments.data_parallel_size",
        ),
        (MINIMAL + "resources: {weights: redis}\n", r"weights"),
        (
            MINIMAL + "resources: {weights_fallback: fetch}\n",
            r"set weights to nats, or leave it out",
        ),
        (MINIMAL + "resources: {weights_base_every: 0}\n", r"at least 1"),
        (MINIMAL + "deterministic: true\ncontrol: {max_staleness: 1}\n", r"max_staleness: 0"),
        (
            MINIMAL.replace("arithmetic", "file"),
            r"line 3: task: task file needs `path`",
        ),
        (
            MINIMAL.replace("arithmetic", "file, path: rows.jsonl"),
            r"task file needs `task.reward` .* or scorers in `filter`",
        ),
        (
            MINIMAL.replace("arithmetic", "file, path: rows.jsonl, reward: mine"),
            r"no filter plugin 'mine'; known: .*module:attribute",
        ),
        (MINIMAL + "seed: 0\nseed: 7\n", r"'seed' stands twice.*line 5"),
        (
            MINIMAL + "generate:\n  policy: iid\n  settings: {width: 4, width: 8}\n",
            r"'width' stands twice.*line 6",
        ),
        (
            MINIMAL + "generate: {policy: math:pi}\n",
            r"'math:pi' is no tree policy: it has no method `plan\(",
        ),
        (
            MINIMAL + "control: {curriculum: math:pi}\n",
            r"'math:pi' is no curriculum: it has no method `allocate\(",
        ),
        (MINIMAL + "budget: 7\n", r"line 4: budget: must be a part of the recipe .*\(got 7\)$"),
        (
            MINIMAL + "optimise: {betas: [0.9, 1.0]}\n",
            r"betas.1: must be less than 1.0 \(got 1.0\)",
        ),
        (MINIMAL + "optimise: {betas: [0.9]}\n", r"betas"),
        (MINIMAL + "optimise: {betas: 0.9}\n", r"betas: must be a list"),
        (
            MINIMAL + "optimise: {clip_norm: .inf}\n",
            r"clip_norm: must be a finite number \(got inf\)",
        ),
        (MINIMAL + "optimise: {learning_rate: .nan}\n", r"learning_rate: must be a finite number"),
        (
            MINIMAL + "resources: {threads: -1}\n",
            r"threads: must be at least 1 or must be 'auto' \(got -1\)$",
        ),
        (MINIMAL + "budget: {steps: 1e3}\n", r"budget.steps: must be an integer \(got 1000.0\)"),
        (
            MINIMAL + "optimise: {loss_settings: {entropy: .nan}}\n",
            r"line 4: optimise.loss_settings.entropy: nan is not a f",
        ),
        (
            MINIMAL + "generate:\n  settings:\n    a: [1, {b: -.inf}]\n",
            r"line 6: generate.settings.a.1.b: -inf is not a finite",
        ),
        (
            MINIMAL + "filter: [{name: number, settings: {a: .inf}}]\n",
            r"filter.0.settings.a: inf is not a finite number$",
        ),
        (MINIMAL + "optimise: {advantage: os:getcwd}\n", r"'os:getcwd' is no estimator"),
        (
            MINIMAL.replace("tic}", "tic, config: {a: {.nan: 1}}}"),
            r"line 3: task.config.a.nan: nan is not a finite number$",
        ),
        ("a: [", r"not YAML"),
        ("a: 2020-99-99", r"not YAML"),
        ("a: !!int x", r"not YAML"),
        ("a: !!timestamp x", r"not YAML"),
        (f"a: {'9' * 5000}", r"not YAML"),
        ("- a\n", r"must be a YAML mapping, got list"),
        ("# nothing\n", r"must be a YAML mapping, got nothing"),
    ],
)
def test_bad_recipes_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(text, name="r.yaml")


def test_settings_that_hold_themselves_are_refused() -> None:
    inside: dict[str, object] = {}
    inside["x"] = inside
    data = {
        "name": "x",
        "model": "m",
        "task": {"name": "arithmetic"},
        "generate": {"settings": inside},
    }
    with pytest.raises(InvalidInput, match=r"generate.settings: has more than 32 levels"):
        resolve(data)


@pytest.mark.parametrize(
    "part",
    [
        "generate.settings",
        "control.curriculum_settings",
        "control.rooms_settings",
        "resources.engine_settings",
        "optimise.advantage_settings",
        "optimise.loss_settings",
        "task.config",
    ],
)
def test_no_settings_take_what_json_has_no_word_for(part: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"^--set {part}.a=.nan: {part}.a: nan is not a finite number$"
    ):
        parse(MINIMAL, [f"{part}.a=.nan"])


def test_an_option_reaches_into_lists() -> None:
    text = MINIMAL + "filter: [{name: number}, {name: regex, settings: {pattern: a}}]\n"
    recipe = parse(
        text,
        [
            "filter.1.settings.pattern=b",
            "filter.0.settings.take=last",
            "generate.stop=[x, y]",
            "generate.stop.1=z",
        ],
    )
    assert recipe.filter[0].settings == {"take": "last"}
    assert recipe.filter[1].settings == {"pattern": "b"} and recipe.generate.stop == ["x", "z"]
    for wrong in ("filter.2.name=x", "filter.-1.name=x", "filter.name=x", "filter.7=x"):
        with pytest.raises(
            InvalidInput, match=r"is no position in a list of 2; they are counted from 0"
        ):
            parse(text, [wrong])


@pytest.mark.parametrize("override", ["budget.steps", "=3", "name.x=1"])
def test_bad_overrides_are_refused(override: str) -> None:
    with pytest.raises(InvalidInput, match="--set"):
        load(ARITHMETIC, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("budget.steps=x", r"^--set budget.steps=x: budget.steps: must be an integer \(got 'x'\)$"),
        ("generate={trees: 0}", r"^--set generate=.*: generate.trees: must be at least 1"),
        ("eval.samples=-1", r"^--set eval.samples=-1: eval.samples: must be at least 0"),
        ("resources.oops.more=1", r"^--set resources.oops.more=1: resources.oops: unknown key"),
    ],
)
def test_what_an_option_says_is_not_laid_to_a_line_of_the_file(override: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(ARITHMETIC, [override])


def test_what_the_file_says_is_not_laid_to_an_option() -> None:
    with pytest.raises(InvalidInput, match=r"^r.yaml, line 4: budget.steps: must be at least 1"):
        parse(MINIMAL + "budget: {steps: 0}\n", ["budget.minutes=2"], "r.yaml")


@pytest.mark.parametrize(
    "number", ["1e-5", "1E-5", "1.0e-5", "1.e-5", "10e-6", ".1e-4", "+1e-5", "0.00001"]
)
def test_numbers_with_an_exponent_are_numbers(number: str) -> None:
    assert (
        parse(MINIMAL + f"optimise: {{learning_rate: {number}}}\n").optimise.learning_rate == 1e-5
    )
    assert parse(MINIMAL, [f"optimise.learning_rate={number}"]).optimise.learning_rate == 1e-5


def test_large_exponents_and_words_that_only_look_like_one() -> None:
    minutes = [
        parse(MINIMAL, [f"budget.minutes={n}"]).budget.minutes for n in ("1E5", "1e+3", "2e0")
    ]
    assert minutes == [1e5, 1e3, 2.0]
    assert parse(MINIMAL, ["description=1e5x"]).description == "1e5x"


def test_a_byte_order_mark_is_no_part_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(tmp_path / "r.yaml").name == "x"


def test_a_users_own_scorer_is_not_imported_in_this_process() -> None:
    assert parse(MINIMAL + "filter: [{name: 'no_such_module:f'}]\n").scorers == ["no_such_module:f"]


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read recipe .*none.yaml: No such file"):
        load(tmp_path / "none.yaml")


class DrawsNothing:
    """Replay plugin without a method `sample`."""


def test_a_replay_plugin_that_cannot_draw_is_refused() -> None:
    overrides = [
        f"replay={{policy: '{__name__}:DrawsNothing', fraction: 0.2}}",
        "optimise.loss=decoupled",
    ]
    with pytest.raises(
        InvalidInput,
        match=r"replay\.policy .*:DrawsNothing gives a DrawsNothing without a method sample",
    ):
        parse(MINIMAL, overrides)


def test_an_alias_is_the_value_that_it_names() -> None:
    text = "name: x\nmodel: m/m\ntask: {name: arithmetic, system: &s Be brief.}\ndescription: *s\n"
    assert parse(text).description == "Be brief."


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "task: &a {name: arithmetic, config: *a}\n",
            "it has more than 100,000 values, with those of aliases",
        ),
        ("task: &a [1, [2, *a]]\n", "it has more than 100,000 values, with those of aliases"),
        (BOMB, "it has more than 100,000 values, with those of aliases"),
        ("task: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_yaml_that_has_no_end_is_refused_at_once(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"recipe is not YAML: .*{says}"):
        parse(text)
