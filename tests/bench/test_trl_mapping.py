"""Every setting that affects a step has a counterpart in TRL, or a reason why it needs none."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Control, Generate, Optimise, Recipe, Resources
from bench.trl import mapping, ours
from bench.trl.mapping import APART, FIELDS, OWN, PARTS, VARIANTS


def test_every_field_of_the_parts_that_are_work_is_mapped_or_explained() -> None:
    parts = {"generate": Generate, "control": Control, "optimise": Optimise, "resources": Resources}
    known = {f"{name}.{field}" for name, part in parts.items() for field in part.model_fields}
    known |= set(Recipe.model_fields) - set(parts) - APART
    assert known - set(FIELDS) == set()
    silent = [name for name, meaning in FIELDS.items() if not meaning.says and meaning.trl is None]
    assert silent == []


def test_every_setting_of_the_loss_and_of_the_advantage_is_explained() -> None:
    from methods.advantages.grpo import Grpo
    from services.learner.losses.aggregate import Aggregate
    from services.learner.losses.composed import Composed
    from services.learner.losses.ppo_clip import PpoClip

    known = {
        f"{part.__name__}.{field.name}"
        for part in (PpoClip, Composed, Aggregate, Grpo)
        for field in fields(part)
    }
    assert known == set(PARTS)
    assert all(PARTS.values())


def test_the_clips_that_trl_is_given_are_our_defaults() -> None:
    from services.learner.losses.aggregate import Aggregate
    from services.learner.losses.ppo_clip import PpoClip

    actual = mapping.arguments(ours.recipe(), VARIANTS[0], 3)
    assert (actual["epsilon"], actual["epsilon_high"]) == (PpoClip().clip_low, PpoClip().clip_high)
    assert actual["delta"] == PpoClip().dual_clip
    assert (actual["loss_type"], Aggregate().mode) == ("dapo", "token-mean")


def test_the_arithmetic_recipe_becomes_these_arguments() -> None:
    actual = mapping.arguments(ours.recipe(), VARIANTS[3], ours.recipe().budget.steps)
    wanted: dict[str, Any] = {
        "num_generations": 8,
        "max_completion_length": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "learning_rate": 4e-5,
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0,
        "num_iterations": 1,
        "beta": 0.0,
        "scale_rewards": "group",
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 8,
        "bf16": True,
        "generation_batch_size": 64,
        "max_steps": 40,
        "shuffle_dataset": False,
        "seed": 0,
        "save_strategy": "no",
    }
    assert {name: actual[name] for name in wanted} == wanted
    assert ours.recipe().optimise.decay_steps == 40, "TRL's rate falls over all its steps"


def test_variants_are_all_eight_and_cut_one_batch() -> None:
    assert {(v.dtype, v.micro) for v in VARIANTS} == {
        (d, m) for d in ("float32", "bfloat16") for m in (64, 32, 16, 8)
    }
    for variant in VARIANTS:
        cut = variant.arguments(64)
        assert cut["per_device_train_batch_size"] * cut["gradient_accumulation_steps"] == 64
        assert cut["bf16"] == (variant.dtype == "float32") and cut["model_init_kwargs"] == {
            "dtype": variant.dtype
        }
    assert len({v.name for v in VARIANTS}) == 8


@pytest.mark.parametrize(
    "change",
    [
        "generate.stop=['.']",
        "optimise.warmup_steps=5",
        "control.max_staleness=1",
        "optimise.advantage=dr-grpo",
        "generate.trees=2",
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(change: str) -> None:
    with pytest.raises(InvalidInput, match=change.split("=")[0].replace(".", r"\.")):
        mapping.lines(ours.recipe(change))


def test_a_field_that_nobody_mapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mapping, "FIELDS", {n: m for n, m in FIELDS.items() if n != "generate.top_p"}
    )
    with pytest.raises(InvalidInput, match=r"generate\.top_p is mapped to nothing"):
        mapping.lines(ours.recipe())


def test_both_get_the_same_epsilon_and_nothing_is_given_twice() -> None:
    recipe = ours.recipe()
    assert recipe.optimise.advantage_settings == {"epsilon": mapping.EPSILON}
    named = [name for line in mapping.lines(recipe) for name in line.trl]
    assert len(named) == len(set(named))
    assert set(named) & set(OWN) <= {"num_iterations"}


def test_no_group_is_dropped_on_the_same_work() -> None:
    from banyan.plugins import GroupTrees
    from banyan.segment import Kind, Segment
    from banyan.tree import Leaf, Tree
    from banyan.view import TreeView
    from bench.trl.estimator import Varied

    root = Segment(b"t" * 32, b"", 0, 0, Kind.PROMPT, np.array([1, 2], np.int32))
    tree = Tree(b"t" * 32, [root])
    leaves = []
    for ordinal in range(4):
        tokens, logprobs = np.array([3 + ordinal], np.int32), np.zeros(1, np.float32)
        answer = Segment(
            tree.tree_id, root.id, 2, ordinal, Kind.POLICY, tokens, logprobs, policy=b"p" * 32
        )
        tree.add(answer)
        leaves.append(Leaf(answer.id, 1))
    view = TreeView(tree, leaves, dict.fromkeys(leaves, 0.0))
    result = Varied().estimate(GroupTrees("g", [view]))
    assert not result.skip
    assert [value > 0 for value in result.leaf_G_L[0]] == [False, True, False, True]
