"""Weights and checkpoints as files: their folders, their lifetime, full disks, their timing."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.credit.estimate import ScoredTree
from banyan.errors import InvalidInput, NotFound, TemporaryError
from banyan.plugins import Advantages, GroupTrees
from services.chassis.weights import file as weightfile
from services.chassis.weights import lock
from services.learner import server
from services.learner.checkpoints import checkpoint
from services.learner.checkpoints.checkpoint import Mark, Snapshot
from services.learner.data.prepare import build_lesson
from services.learner.training.checkpointer import Checkpointer
from services.learner.weights import folder as weights
from services.learner.weights.folder import WeightFolder, choose_folder


def put(folder: WeightFolder, step: int, value: float) -> weightfile.WeightManifest:
    return folder.put({"w": torch.full((1000, 600), value)}, 1, step, "bfloat16")


def test_a_step_that_changed_nothing_is_the_same_file_under_a_new_number(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    first = put(folder, 0, 1.0)
    second = folder.repeat(1, 1)
    assert (second.digest, second.step) == (first.digest, 1)
    assert weightfile.open_verified(second.manifest_path).step == 1
    for step in range(2, 6):
        put(folder, step, float(step))
    assert not first.path.exists() and not second.path.exists()
    with pytest.raises(NotFound, match="held: step 3, step 4, step 5"):
        folder.find(first.digest)


def test_a_fetch_goes_on_though_the_file_is_deleted(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    first = put(folder, 0, 1.0)
    whole = first.path.read_bytes()
    stream = server.pieces(folder, first.digest, 0)
    got = [next(stream)]
    for step in range(1, 5):
        put(folder, step, float(step))
    assert not first.path.exists()
    got += stream
    assert b"".join(p.data for p in got) == whole
    assert [bool(p.manifest_json) for p in got] == [True, False]
    assert {p.total for p in got} == {len(whole)}


def test_pages_that_nobody_holds_are_used_again(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    manifests = [put(folder, step, float(step)) for step in range(3)]
    pages = manifests[0].path.stat().st_ino
    fourth = put(folder, 3, 3.0)
    assert (
        fourth.path.stat().st_ino == pages
        and not manifests[0].path.exists()
        and not manifests[0].manifest_path.exists()
    )
    assert weightfile.open_verified(fourth.manifest_path).digest == fourth.digest
    fresh = weightfile.write(
        tmp_path / "else", "policy-1-3", {"w": torch.full((1000, 600), 3.0)}, 1, 3
    )
    assert fresh.digest == fourth.digest
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_the_first_versions_lie_in_pages_that_were_reserved(tmp_path: Path) -> None:
    folder, other = WeightFolder(tmp_path), WeightFolder(tmp_path)
    folder.reserve(weightfile.size_of({"w": torch.zeros(1000, 600)}))
    pages = {p.stat().st_ino for p in tmp_path.iterdir()}
    manifests = [put(folder, step, float(step)) for step in range(4)]
    assert len(pages) == 3 and {m.path.stat().st_ino for m in manifests[1:]} == pages
    for manifest in manifests[1:]:
        fresh = weightfile.write(
            tmp_path / "else", "w", {"w": torch.full((1000, 600), float(manifest.step))}, 1, 0
        )
        assert (
            weightfile.open_verified(manifest.manifest_path).digest
            == weightfile.digest_of(manifest.path)
            == fresh.digest
        )
    folder.reserve(10)
    other.drop_foreign()
    folder.clean()
    assert [p.name for p in tmp_path.iterdir()] == ["else"]


def test_a_version_that_is_held_is_not_written_over(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    first = put(folder, 0, 1.0)
    whole = first.path.read_bytes()
    with lock.held(first.manifest_path) as file:
        for step in range(1, 6):
            put(folder, step, float(step))
        assert file.read() == whole
    with pytest.raises(NotFound, match="fetch the newest"), lock.held(first.manifest_path):
        pass


def test_a_reader_sees_a_version_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    manifests = [put(folder, 0, 0.0)]
    stop, reads, wrong = threading.Event(), [0, 0], []

    def read() -> None:
        while not stop.is_set():
            manifest = manifests[0]
            try:
                with lock.held(manifest.manifest_path):
                    weightfile.open_verified(manifest.manifest_path)
                reads[0] += 1
            except NotFound:
                reads[1] += 1
            except InvalidInput as error:
                wrong.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(1, 150):
        newest = put(folder, step, float(step))
        manifests[0] = folder._versions[0] if step % 2 else newest
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong and reads[0] > 10


def test_a_learner_removes_its_own_weights_only(tmp_path: Path) -> None:
    old, new = WeightFolder(tmp_path), WeightFolder(tmp_path)
    put(old, 0, 1.0)
    kept = new.put({"w": torch.ones(3)}, 2, 0, "bfloat16")
    old.clean()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy-2-0.bin", "policy-2-0.json"]
    put(old, 1, 1.0)  # a killed learner leaves its files
    new.drop_foreign()
    assert new.find(kept.digest) == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy-2-0.bin", "policy-2-0.json"]
    new.clean()
    assert not tmp_path.exists()


def test_shared_memory_is_taken_only_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_SHARED", tmp_path)
    assert choose_folder(Path("/else"), "r", tmp_path / "run", 1) == Path("/else")
    assert choose_folder(None, "r", tmp_path / "run", 1) == tmp_path / "banyan-r"
    assert choose_folder(None, "r", tmp_path / "run", 1 << 60) == tmp_path / "run" / "weights"


def test_no_room_for_weights_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(TemporaryError, match="No space left"):
        put(WeightFolder(tmp_path), 0, 1.0)


class FakeTorchThread:
    """Snapshots without a model."""

    def trained_bytes(self) -> int:
        return 0

    async def snapshot(self, mark: Mark, copied: bool) -> Snapshot:
        return Snapshot(mark, {"w": torch.ones(3)}, {})


def mark(step: int) -> Mark:
    return Mark("r", 1, step, step, "")


async def test_a_failed_checkpoint_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Checkpointer(tmp_path / "checkpoints", tmp_path, FakeTorchThread(), every=2)
    keeper.begin(0)
    plain, failing = checkpoint.write, True

    def write(folder: Path, snapshot: Snapshot, base: Path) -> Path:
        if failing:
            raise TemporaryError("no room")
        return plain(folder, snapshot, base)

    monkeypatch.setattr(checkpoint, "write", write)
    for step in (1, 2, 3):
        await keeper.consider(mark(step))
        await asyncio.sleep(0)
    failing = False
    path = await keeper.keep(mark(4))
    assert checkpoint.read_mark(path) == mark(4)
    failing = True
    with pytest.raises(TemporaryError, match="no room"):
        await keeper.keep(mark(5))
    keeper.done()
    assert checkpoint.newest(tmp_path / "checkpoints", "r") == (path, mark(4))


def test_node_values_reach_every_path_through_the_node(forest: Any) -> None:
    class PerNode:
        def estimate(self, group: GroupTrees) -> Advantages:
            view = group.trees[0]
            node_N = np.array([float(n.index) for n in view.nodes])
            return Advantages((np.zeros(len(view.leaves_L)),), (node_N,))

    view = forest.two_level([1, 0, 0, 0])
    tree = ScoredTree(
        view.tree, view.leaves_L, dict(zip(view.leaves_L, (1.0, 0.0, 0.0, 0.0), strict=True))
    )
    row = build_lesson(
        [("g", [tree])], PerNode(), lambda _tree, _leaf: False, b"now", 99
    ).sequences[0]
    middle = [1.0, 1.0, 4.0, 4.0]  # nodes in pre-order: root, a, a1, a2, b, b1, b2
    np.testing.assert_array_equal(
        row.advantage_P_T, [[m, m, n] for m, n in zip(middle, (2.0, 3.0, 5.0, 6.0), strict=True)]
    )


def test_a_checkpoint_is_on_disk_with_all_of_its_names_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base := tmp_path / "base").mkdir()
    (base / "config.json").write_text("{}")
    synced: list[Path] = []
    plain = checkpoint._fsync

    def note(path: Path) -> None:
        plain(path)
        synced.append(path)

    monkeypatch.setattr(checkpoint, "_fsync", note)
    run = tmp_path / "run"
    run.mkdir()
    tensors = {"w": torch.zeros(4)}
    mark = checkpoint.Mark("r", 1, 3, 3, "")
    checkpoint.write(run / "checkpoints", checkpoint.Snapshot(mark, tensors, tensors), base)
    names = [p.name.split(".")[1] if p.name.startswith(".step") else p.name for p in synced]
    assert names == ["config.json", "manifest.json", "step-00000003-epoch-1", "checkpoints", "run"]
