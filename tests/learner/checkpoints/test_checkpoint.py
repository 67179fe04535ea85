"""Checkpoints: exact, loadable by transformers, whole or absent wherever a writer was killed."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from banyan.errors import TemporaryError
from banyan.recipe import Optimise
from services.chassis.weights.file import digest_of
from services.learner.checkpoints import checkpoint, safetensors_writer
from services.learner.checkpoints.checkpoint import Mark, Snapshot
from services.learner.model.load import load
from services.learner.training.trainer import Trainer

RUN = "run-1"


def mark(step: int, epoch: int = 1) -> Mark:
    return Mark(RUN, epoch, step, step, "ab" * 32)


def snapshot(step: int, epoch: int = 1, size: int = 50) -> Snapshot:
    weights = {
        "a": torch.full((size, 3), float(step)),
        "b": torch.arange(7, dtype=torch.int64),
        "c": torch.tensor(step),
    }
    return Snapshot(
        mark(step, epoch),
        weights,
        {"step.a": torch.tensor(float(step)), "exp_avg.a": torch.zeros(size, 3)},
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}" * 100)
    (folder / "model.safetensors").write_bytes(b"not copied")
    return folder


def test_flat_files_are_safetensors_digested_while_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_writer, "CHUNK_BYTES", 1000)
    tensors = {
        "x": torch.randn(40, 30),
        "y": torch.randn(3).bfloat16(),
        "z": torch.tensor(5),
        "e": torch.zeros(0, 4),
    }
    size, digest = safetensors_writer.write(tmp_path / "t.safetensors", tensors)
    assert size == (tmp_path / "t.safetensors").stat().st_size
    assert digest == digest_of(tmp_path / "t.safetensors")
    read = load_file(tmp_path / "t.safetensors")
    assert all(torch.equal(read[n], tensors[n]) for n in tensors)


def test_the_newest_whole_one_counts(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert checkpoint.newest(folder, RUN) is None
    for step in (1, 2, 9, 10):
        checkpoint.write(folder, snapshot(step), base)
    assert [p.name for p in sorted(folder.iterdir())] == [
        "step-00000009-epoch-1",
        "step-00000010-epoch-1",
    ]
    newest = checkpoint.newest(folder, RUN)
    assert newest is not None and newest[1] == mark(10)
    assert sorted(p.name for p in newest[0].iterdir()) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "tokenizer.json",
    ]
    assert checkpoint.newest(folder, "another-run") is None
    later = checkpoint.write(
        folder, snapshot(3, epoch=2), base
    )  # everything of epoch 1 was torn, it began again
    assert checkpoint.newest(folder, RUN) == (later, mark(3, 2))


def test_what_a_later_learner_is_writing_stays(tmp_path: Path, base: Path) -> None:
    """An older learner may end a checkpoint before it knows that it is over."""
    folder = tmp_path / "checkpoints"
    for aside in (".step-00000002-epoch-1.77", ".step-00000001-epoch-3.77"):
        (folder / aside).mkdir(parents=True)
    checkpoint.write(folder, snapshot(3, epoch=2), base)
    assert {p.name for p in folder.iterdir()} == {
        "step-00000003-epoch-2",
        ".step-00000001-epoch-3.77",
    }
    checkpoint.write(folder, snapshot(4, epoch=3), base)
    assert {p.name for p in folder.iterdir()} == {"step-00000003-epoch-2", "step-00000004-epoch-3"}


def test_torn_at_any_length_of_any_file(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint.write(folder, snapshot(1), base)
    whole = checkpoint.write(folder, snapshot(2), base)
    kept = tmp_path / "kept"
    shutil.copytree(whole, kept)
    draws = random.Random(0)
    for file in sorted(kept.iterdir()):
        size = file.stat().st_size
        lengths = {0, 1, size - 1, *(draws.randrange(size) for _ in range(10))}
        for length in lengths:
            (whole / file.name).write_bytes(file.read_bytes()[:length])
            assert _step(folder) == 1, (file.name, length)
        (whole / file.name).unlink()
        assert _step(folder) == 1
        flipped = bytearray(file.read_bytes())
        flipped[size // 2] ^= 1
        (whole / file.name).write_bytes(flipped)
        # A flip in the manifest may leave a valid mark; every other one must be detected.
        assert file.name == checkpoint.MANIFEST or _step(folder) == 1, file.name
        shutil.copyfile(file, whole / file.name)
    assert _step(folder) == 2


def _step(folder: Path) -> int:
    newest = checkpoint.newest(folder, RUN)
    assert newest is not None
    return newest[1].step


KILLED = """
import os, sys
sys.path.insert(0, {root!r})
import torch
from pathlib import Path
from services.learner.checkpoints import checkpoint, safetensors_writer
from services.learner.checkpoints.checkpoint import Mark, Snapshot
left = int(sys.argv[1])
def counted(real):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    return call
def half(handle, data):
    global left
    left -= 1
    if left < 0:
        os.pwrite(handle, data[: len(data) // 2], os.lseek(handle, 0, 1))
        os.kill(os.getpid(), 9)
    return write(handle, data)
write = os.write
os.write = half
for name in ("fsync", "rename", "open", "mkdir", "unlink", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
weights = {{"a": torch.full((500, 3), 2.0)}}
shot = Snapshot(Mark("run-1", 1, 2, 2, "ab" * 32), weights, {{"step.a": torch.tensor(2.0)}})
checkpoint.write(Path(sys.argv[2]), shot, Path(sys.argv[3]))
print("written", flush=True)
"""


def test_killed_at_any_call_the_last_whole_one_loads(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked writer dies at its n-th system call, in the middle of it if that is a write."""
    monkeypatch.setattr(safetensors_writer, "CHUNK_BYTES", 256)
    root = str(Path(checkpoint.__file__).parents[3])
    folder = tmp_path / "checkpoints"
    checkpoint.write(folder, snapshot(0), base)
    checkpoint.write(folder, snapshot(1), base)
    script = KILLED.format(root=root)
    newest_steps = set()
    for calls in range(200):
        child = os.fork()
        if child == 0:
            _die_writing(script, calls, folder, base)
        _, status = os.waitpid(child, 0)
        newest_steps.add(_step(folder))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == 9
    else:
        pytest.fail("the writer never came to its end")
    assert calls > 30
    assert _step(folder) == 2
    assert newest_steps == {1, 2}
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def _die_writing(script: str, calls: int, folder: Path, base: Path) -> None:
    try:
        sys.argv = ["writer", str(calls), str(folder), str(base)]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        exec(compile(script, "writer", "exec"), {})
        os._exit(0)
    except BaseException:
        os._exit(1)


def test_a_process_killed_at_random_moments(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint.write(folder, snapshot(1), base)
    body = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch\nfrom pathlib import Path\n"
        "from services.learner.checkpoints import checkpoint\n"
        "from services.learner.checkpoints.checkpoint import Mark, Snapshot\n"
        "print('up', flush=True)\n"
        "for step in range(2, 10**6):\n"
        "    weights = {'a': torch.full((100_000,), float(step))}\n"
        "    shot = Snapshot(Mark('run-1', 1, step, step, 'ab' * 32), weights, {})\n"
        "    checkpoint.write(Path(sys.argv[2]), shot, Path(sys.argv[3]))\n"
        "    print(step, flush=True)\n"
    )
    root = str(Path(checkpoint.__file__).parents[3])
    command = [sys.executable, "-c", body, root, str(folder), str(base)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(6)][-1]
        process.kill()
    newest = checkpoint.newest(folder, RUN)
    assert newest is not None and newest[1].step >= int(acknowledged)
    read = load_file(newest[0] / checkpoint.MODEL)["a"]
    assert torch.equal(read, torch.full((100_000,), float(newest[1].step)))


def test_a_disk_that_is_full_leaves_the_old_ones(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint.write(folder, snapshot(1), base)

    def full(path: Path, tensors: Any) -> tuple[int, bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors_writer, "write", full)
    with pytest.raises(TemporaryError, match="No space left"):
        checkpoint.write(folder, snapshot(2), base)
    assert _step(folder) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_bit_for_bit_and_transformers_loads_it(
    tmp_path: Path, tiny_folder: Path, forest: Any, dtype: torch.dtype
) -> None:
    from transformers import AutoModelForCausalLM

    from services.learner.packing import packing, unroll

    def rows(step: int) -> list[packing.PackedSequence]:
        import numpy as np

        rng = np.random.default_rng(step)
        view = forest.random(rng, 8)
        return packing.pack(
            [unroll.unroll(view, range(len(view.leaves_L)), rng.standard_normal(99), None, b"now")],
            999,
        )

    optimise = Optimise(learning_rate=1e-2)
    straight = Trainer(load(tiny_folder), optimise, dtype)
    for step in range(4):
        straight.step(rows(step), step)
        if step == 1:
            snapshot_of_two = Snapshot(
                mark(2), straight.masters.exact(), straight.moments()
            ).copied()
    path = checkpoint.write(tmp_path / "checkpoints", snapshot_of_two, tiny_folder)
    resumed = Trainer(load(path), optimise, dtype)
    resumed.restore_moments(load_file(path / checkpoint.OPTIMIZER))
    for step in (2, 3):
        resumed.step(rows(step), step)
    one, two = straight.masters.exact(), resumed.masters.exact()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[n], two[n]) for n in one)
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    assert torch.equal(
        loaded["model.embed_tokens.weight"], snapshot_of_two.weights["model.embed_tokens.weight"]
    )
    assert torch.equal(
        loaded["lm_head.weight"], snapshot_of_two.weights["model.embed_tokens.weight"]
    )
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["mark"]["next_ordinal"] == 2
