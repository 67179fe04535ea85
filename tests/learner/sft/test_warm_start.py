"""Warm starts of a tiny random model: the loss falls, seeds repeat, the folder is whole or not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from banyan.errors import InvalidInput, NotReady
from banyan.recipe import Lora, Optimise, Resources
from services.learner.checkpoints import checkpoint, safetensors_writer
from services.learner.packing.unroll import TreePart
from services.learner.sft import batches, examples, output, warm_start
from services.learner.sft.warm_start import Losses
from services.learner.training.trainer import Trainer

STEPS = 12


def parts() -> list[TreePart]:
    """Return rows that can be learned: a number is followed by the next ones."""
    numbers = (np.arange(start, start + 8, dtype=np.int32) for start in range(20))
    rows = (examples.of_row("row", b"", tokens, np.arange(8) > 1) for tokens in numbers)
    return examples.parts_of(rows)


def taught(
    folder: Path, seed: int = 0, rate: float = 3e-2, adapter: Lora | None = None
) -> tuple[Trainer, Losses]:
    model, dtype = warm_start.load(folder, Resources(dtype="float32"), 1)
    trainer = warm_start.trainer_of(
        model, Optimise(), dtype, steps=STEPS, learning_rate=rate, adapter=adapter, seed=seed
    )
    planned = batches.batches(parts(), 64, seed, epochs=1, steps=STEPS)
    return trainer, warm_start.teach(trainer, planned, parts())


def weights(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    trainer, _ = taught(folder, **changes)
    return {n: t.clone() for n, t in warm_start.weights(trainer, folder).items()}


def test_the_loss_falls_and_the_folder_computes_what_was_trained(
    tiny_folder: Path, tmp_path: Path
) -> None:
    trainer, losses = taught(tiny_folder)
    assert losses.after < 0.5 * losses.before and len(losses.by_step) == STEPS
    tensors = warm_start.weights(trainer, tiny_folder)
    output.write(tmp_path / "out", tiny_folder, tensors, {"format": "test"})
    again, _ = warm_start.load(tmp_path / "out", Resources(dtype="float32"), 1)
    reloaded = warm_start.trainer_of(again, Optimise(), torch.float32, steps=1, learning_rate=1e-3)
    assert warm_start.mean_loss(reloaded, parts()) == pytest.approx(losses.after, abs=1e-6)
    record = json.loads((tmp_path / "out" / output.RECORD).read_text())
    assert record["weights"]["bytes"] == (tmp_path / "out" / checkpoint.MODEL).stat().st_size


def test_a_recipe_of_labels_has_its_own_loss_on_the_rows(tiny_folder: Path) -> None:
    """OTR weighs a label by its probability under the softened policy, so unlikely ones less."""
    plain, labels = Optimise(), Optimise(loss="otr", loss_settings={"kappa": 1.3, "beta": 0.0})
    assert warm_start.objective(plain) == ("reinforce", {})
    assert warm_start.objective(Optimise(loss="gspo")) == ("reinforce", {})
    planned = batches.batches(parts(), 64, 0, epochs=1, steps=STEPS)
    first = []
    for optimise in (plain, labels):
        model, dtype = warm_start.load(tiny_folder, Resources(dtype="float32"), 1)
        trainer = warm_start.trainer_of(model, optimise, dtype, steps=STEPS, learning_rate=3e-2)
        losses = warm_start.teach(trainer, planned, parts())
        assert losses.after < losses.before
        first.append(losses.by_step[0])
    assert 0 < first[1] < 0.5 * first[0]


def test_one_seed_gives_the_same_weights_and_another_one_others(tiny_folder: Path) -> None:
    first, second, other = (weights(tiny_folder, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_an_adapter_is_trained_and_written_merged(tiny_folder: Path, tmp_path: Path) -> None:
    trainer, losses = taught(tiny_folder, rate=5e-2, adapter=Lora(rank=4, alpha=8.0))
    assert losses.after < losses.before
    output.write(tmp_path / "out", tiny_folder, warm_start.weights(trainer, tiny_folder), {})
    base = load_file(tiny_folder / checkpoint.MODEL)
    merged = load_file(tmp_path / "out" / checkpoint.MODEL)
    assert set(merged) == set(base)
    moved = {name for name in base if not torch.equal(base[name], merged[name])}
    assert moved and all("_proj" in name for name in moved)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    plain = warm_start.trainer_of(
        warm_start.models.prepare(model), Optimise(), torch.float32, steps=1, learning_rate=1e-3
    )
    assert warm_start.mean_loss(plain, parts()) == pytest.approx(losses.after, abs=1e-5)


def test_a_loss_that_is_not_finite_ends_the_warm_start(tiny_folder: Path) -> None:
    model, dtype = warm_start.load(tiny_folder, Resources(dtype="float32"), 1)
    trainer = warm_start.trainer_of(model, Optimise(), dtype, steps=2, learning_rate=1e-3)
    with torch.no_grad():
        trainer.masters.weights[0].fill_(float("inf"))
    with pytest.raises(NotReady, match="step 1 of 1 is not finite; nothing is written"):
        warm_start.teach(trainer, [parts()], parts())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_replaced_only_on_request_and_only_by_its_like(
    tiny_folder: Path, tmp_path: Path
) -> None:
    to, tensors = tmp_path / "out", load_file(tiny_folder / checkpoint.MODEL)
    output.write(to, tiny_folder, tensors, {"number": 1}, leaves=[{"segment": "ab", "end": 1}])
    with pytest.raises(InvalidInput, match="--force"):
        output.write(to, tiny_folder, tensors, {"number": 2})
    assert json.loads((to / output.RECORD).read_text())["number"] == 1
    assert json.loads((to / output.LEAVES).read_text()) == {"segment": "ab", "end": 1}
    output.write(to, tiny_folder, tensors, {"number": 2}, force=True)
    assert json.loads((to / output.RECORD).read_text())["number"] == 2
    assert not (to / output.LEAVES).exists() and [p.name for p in tmp_path.iterdir()] == ["out"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match=r"no sft\.json"):
        output.write(mine, tiny_folder, tensors, {}, force=True)


def test_an_interrupt_while_it_is_written_leaves_what_was_there(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, tensors = tmp_path / "out", load_file(tiny_folder / checkpoint.MODEL)
    output.write(to, tiny_folder, tensors, {"number": 1})
    before = snapshot(to)
    written = safetensors_writer._write_all

    def interrupted(handle: int, data: bytes) -> None:
        written(handle, data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors_writer, "_write_all", interrupted)
    for folder, force in ((to, True), (tmp_path / "new", False)):
        with pytest.raises(KeyboardInterrupt):
            output.write(folder, tiny_folder, tensors, {"number": 2}, force=force)
    assert snapshot(to) == before and [p.name for p in tmp_path.iterdir()] == ["out"]
