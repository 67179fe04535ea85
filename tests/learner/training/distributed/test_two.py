"""The training of two ranks equals that of one process: losses, norms, gradients and weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from banyan.recipe import Recipe
from services.learner.checkpoints import checkpoint
from services.learner.checkpoints.checkpoint import Mark, Snapshot
from services.learner.data.prepare import Lesson
from services.learner.packing import packing
from services.learner.packing.packing import PackedSequence
from services.learner.packing.silent import Silent
from services.learner.packing.unroll import TreePart
from services.learner.training.trainer_thread import Timed, TorchThread
from tests.learner.in_memory_learner import RUN
from tests.learner.training.distributed.conftest import Pair, pieces_of, recipe

pytestmark = pytest.mark.slow  # groups of processes

Tensors = dict[str, torch.Tensor]
Batches = Sequence[Sequence[TreePart]]


def lesson_of(rows: list[PackedSequence]) -> Lesson:
    """Return the lesson of a batch some of whose groups are silent and count, whatever the loss."""
    return Lesson(rows, [], sizes=(len(rows),), silent=Silent(tokens=50.0, paths=9.0, unique=30.0))


async def trained(
    thread: TorchThread, folder: Path, batches: Batches, first: int = 0, base: Path | None = None
) -> tuple[list[Timed], Snapshot]:
    """Train batches; return the reports of the steps and the state after them.

    base: base of the adapter, where the folder is a checkpoint of one
    """
    await thread.load(folder, resumed=first > 0, base=base or folder)
    budget = thread._recipe.optimise.tokens_per_row
    reports = []
    for number, pieces in enumerate(batches):
        reports.append(await thread.step(lesson_of(thread.pack(pieces, budget)), first + number))
    mark = Mark(RUN, 1, first + len(batches), first + len(batches), "")
    return reports, await thread.snapshot(mark, copied=True)


async def alone(
    folder: Path, batches: Batches, how: Recipe, first: int = 0
) -> tuple[list[Timed], Snapshot]:
    thread = TorchThread(how, 1)
    try:
        return await trained(thread, folder, batches, first)
    finally:
        thread.done()


def apart(one: Any, two: Any) -> float:
    """Return the largest relative distance of a tensor."""
    assert set(one) == set(two)
    return max(float((one[n] - two[n]).norm() / one[n].norm().clamp_min(1e-12)) for n in one)


def batches_of(forest: Any, steps: int = 3, trees: int = 5) -> Batches:
    return [pieces_of(forest, seed, trees) for seed in range(steps)]


LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}
LOSSES: list[dict[str, Any]] = [
    {},
    {"loss_settings": {"mode": "seq-mean-token-mean", "kl": {"coef": 0.1, "estimator": "k3"}}},
    {"loss": "gspo", "loss_settings": {"importance": {"normalise": True}}},
    {"loss_settings": {"count": "nodes", "entropy": 0.01}},
    {"loss": "otr", "loss_settings": {"beta": -0.1}},
    {"recompute": True},
    {"lora": LORA},
    {"lora": {"rank": 3, "targets": ["layers.1.mlp.up_proj", "q_proj"]}, "recompute": True},
    {"lora": LORA, "loss_settings": {"kl": {"coef": 0.1, "estimator": "k3"}}},
]


@pytest.mark.parametrize("changes", LOSSES)
async def test_two_ranks_equal_one(
    pair: Pair, tiny_folder: Path, forest: Any, changes: dict[str, Any]
) -> None:
    how = recipe(**changes)
    timed, state = await trained(pair.thread(how), tiny_folder, batches_of(forest, 1))
    expected, whole = await alone(tiny_folder, batches_of(forest, 1), how)
    one, two = expected[0].report, timed[0].report
    assert two.applied and two.grad_norm > how.optimise.clip_norm, "it is clipped"
    for name in (
        "loss",
        "grad_norm",
        "mismatch_kl",
        "entropy",
        "clip_fraction",
        "foreign_fraction",
    ):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-5, abs=1e-7), name
    assert two.measures == pytest.approx(dict(one.measures), rel=1e-5, abs=1e-7)
    gradients = (
        {n: t for n, t in s.moments.items() if n.startswith("exp_avg.")} for s in (whole, state)
    )
    assert apart(*gradients) < 1e-5  # after one step this is the clipped gradient, times 1 − β
    assert apart(whole.weights, state.weights) < 1e-5


@pytest.mark.parametrize(
    "changes", [{}, {"epochs": 2}, {"lora": LORA}, {"lora": LORA, "epochs": 2}]
)
async def test_several_steps_stay_together(
    pair: Pair, tiny_folder: Path, forest: Any, changes: dict[str, Any]
) -> None:
    how = recipe(**changes)
    timed, state = await trained(pair.thread(how), tiny_folder, batches_of(forest))
    expected, whole = await alone(tiny_folder, batches_of(forest), how)
    assert [t.report.loss for t in timed] == pytest.approx(
        [t.report.loss for t in expected], rel=1e-4
    )
    assert apart(whole.weights, state.weights) < 1e-5


async def test_parameters_that_two_ranks_do_not_divide(
    pair: Pair, tiny_llama: Callable[..., Any], forest: Any, tmp_path: Path
) -> None:
    tiny_llama(
        dtype=torch.float32, vocab_size=41, intermediate_size=47, tie_word_embeddings=False
    ).save_pretrained(tmp_path)
    _, state = await trained(pair.thread(recipe()), tmp_path, batches_of(forest))
    _, whole = await alone(tmp_path, batches_of(forest), recipe())
    assert state.weights["lm_head.weight"].shape == (41, 32)
    assert apart(whole.weights, state.weights) < 1e-5


async def test_a_head_learns_from_what_all_ranks_saw(
    pair: Pair, tiny_folder: Path, forest: Any
) -> None:
    how = recipe(head={"width": 8, "learning_rate": 1e-2})
    thread = pair.thread(how)
    timed, state = await trained(thread, tiny_folder, batches_of(forest, 2))
    kept = {name: tensor.clone() for name, tensor in state.moments.items()}
    rows = thread.pack(batches_of(forest, 1)[0], how.optimise.tokens_per_row)
    assert (await thread.step(lesson_of(rows), 2)).report.head["head_observations"] > 5
    changed = [
        name for name, tensor in kept.items() if not torch.equal(tensor, state.moments[name])
    ]
    assert not changed, "a checkpoint is written while training goes on"
    expected, whole = await alone(tiny_folder, batches_of(forest, 2), how)
    assert expected[0].report.head["head_observations"] > 5
    for one, two in zip(expected, timed, strict=True):
        assert two.report.head == pytest.approx(dict(one.report.head), rel=1e-4, abs=1e-6)
    heads = (
        {n: t for n, t in s.moments.items() if "banyan.head" in n and "weight" in n}
        for s in (whole, state)
    )
    assert apart(*heads) < 1e-4


async def test_a_rank_without_a_tree_takes_part(pair: Pair, tiny_folder: Path, forest: Any) -> None:
    batches = [pieces_of(forest, 3, 1)]
    timed, state = await trained(pair.thread(recipe()), tiny_folder, batches)
    expected, whole = await alone(tiny_folder, batches, recipe())
    assert timed[0].report.loss == pytest.approx(expected[0].report.loss, rel=1e-5)
    assert timed[0].report.grad_norm == pytest.approx(expected[0].report.grad_norm, rel=1e-5)
    assert timed[0].report.applied and apart(whole.weights, state.weights) < 1e-5


async def test_a_batch_that_teaches_nothing_moves_nothing(pair: Pair, tiny_folder: Path) -> None:
    timed, state = await trained(pair.thread(recipe()), tiny_folder, [[]])
    assert not timed[0].report.applied and state.moments == {}
    assert all(
        torch.equal(t, load_file(tiny_folder / "model.safetensors")[n])
        for n, t in state.weights.items()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_same_batches_give_the_same_bits(
    pair: Pair, tiny_folder: Path, forest: Any, dtype: str
) -> None:
    states = [
        (await trained(pair.thread(recipe(dtype=dtype)), tiny_folder, batches_of(forest)))[1]
        for _ in range(2)
    ]
    assert all(torch.equal(states[0].weights[n], states[1].weights[n]) for n in states[0].weights)
    assert all(torch.equal(states[0].moments[n], states[1].moments[n]) for n in states[0].moments)


async def test_bfloat16_keeps_float32_shards(pair: Pair, tiny_folder: Path, forest: Any) -> None:
    how = recipe(dtype="bfloat16")
    thread = pair.thread(how)
    timed, state = await trained(thread, tiny_folder, batches_of(forest, 1))
    expected, whole = await alone(tiny_folder, batches_of(forest, 1), how)
    assert timed[0].report.loss == pytest.approx(expected[0].report.loss, rel=0.05, abs=0.02)
    assert apart(whole.weights, state.weights) < 2e-3
    out = (await thread.run(thread._published))[0]
    assert {t.dtype for t in state.weights.values()} == {torch.float32}
    assert all(torch.equal(out[n], t.bfloat16()) for n, t in state.weights.items())


async def test_tied_names_go_out_as_one_tensor(pair: Pair, tiny_folder: Path) -> None:
    thread = pair.thread(recipe())
    await thread.load(tiny_folder, resumed=False, base=tiny_folder)
    out = (await thread.run(thread._published))[0]
    assert out["lm_head.weight"].data_ptr() == out["model.embed_tokens.weight"].data_ptr()
    single = TorchThread(recipe(), 1)
    await single.load(tiny_folder, resumed=False, base=tiny_folder)
    expected = (await single.run(single._published))[0]
    single.done()
    assert set(out) == set(expected) and all(torch.equal(out[n], expected[n]) for n in expected)


@pytest.mark.parametrize("order", [(2, 1), (1, 2), (2, 2)])
async def test_a_checkpoint_is_read_by_any_number_of_ranks(
    pair: Pair, tiny_folder: Path, forest: Any, tmp_path: Path, order: tuple[int, int]
) -> None:
    async def go(ranks: int, folder: Path, batches: Batches, first: int) -> Snapshot:
        how = recipe()
        result = await (
            trained(pair.thread(how), folder, batches, first)
            if ranks == 2
            else alone(folder, batches, how, first)
        )
        return result[1]

    batches = batches_of(forest, 4)
    straight = (await alone(tiny_folder, batches, recipe()))[1]
    half = checkpoint.write(
        tmp_path / "checkpoints", await go(order[0], tiny_folder, batches[:2], 0), tiny_folder
    )
    both = await go(order[1], half, batches[2:], 2)
    assert apart(straight.weights, both.weights) < 1e-5
    assert {n: t.shape for n, t in straight.moments.items()} == {
        n: t.shape for n, t in both.moments.items()
    }
    assert all(int(t) == 4 for n, t in both.moments.items() if n.startswith("step."))


async def test_a_checkpoint_of_two_ranks_goes_on_bit_for_bit(
    pair: Pair, tiny_folder: Path, forest: Any, tmp_path: Path
) -> None:
    batches = batches_of(forest, 3)
    straight = (await trained(pair.thread(recipe()), tiny_folder, batches))[1]
    half_way = (await trained(pair.thread(recipe()), tiny_folder, batches[:2]))[1]
    half = checkpoint.write(tmp_path / "checkpoints", half_way, tiny_folder)
    both = (await trained(pair.thread(recipe()), half, batches[2:], 2))[1]
    assert all(torch.equal(straight.weights[n], both.weights[n]) for n in straight.weights)
    assert all(torch.equal(straight.moments[n], both.moments[n]) for n in straight.moments)


@pytest.mark.parametrize("changes", [{}, {"lora": LORA}])
async def test_two_ranks_measure_the_drift_that_one_does(
    pair: Pair, tiny_folder: Path, forest: Any, changes: dict[str, Any]
) -> None:
    how = recipe(**changes)
    drifts = {}
    for name, thread in (("one", TorchThread(how, 1)), ("two", pair.thread(how))):
        await trained(thread, tiny_folder, batches_of(forest, 1))
        drifts[name] = await thread.drift(packing.pack(pieces_of(forest, 7), 60))
        if name == "one":
            thread.done()
    assert drifts["two"] == pytest.approx(drifts["one"], rel=1e-5) and drifts["one"]["start_kl"] > 0
    assert drifts["one"]["whole_rate"] > 0
