"""Weights by collectives: workers have the published bytes or an error; none waits for the dead."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from hypothesis import given
from hypothesis import strategies as st

from banyan.errors import BanyanError, InvalidInput, NotFound, TemporaryError
from banyan.recipe import Resources
from services.chassis.weights import collective as handover
from services.chassis.weights import file
from services.learner.weights import collective
from services.rollout.engines.vllm_engine import readback
from services.rollout.weights import collective as handed
from tests.weights.handovers import AMID_BYTES, DEAD, Learner, dying, learner, model, receive

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest_asyncio.fixture
async def source(tmp_path: Path, monkeypatch: Any) -> AsyncIterator[Learner]:
    monkeypatch.setattr(handover, "PIECE_BYTES", 300_000)
    async with learner(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("workers", [1, 3])
async def test_each_worker_has_what_was_published(
    source: Learner, tmp_path: Path, workers: int, dtype: str
) -> None:
    node = source.node(tmp_path / "node", workers)
    for seed in range(3):
        published, wanted = source.publish(seed, dtype), model(seed)
        async with node.held(published) as path:
            assert len(list(handover.pieces(file.read(path), handover.PIECE_BYTES))) > (
                2 if dtype == "float32" else 1
            )
            results = await asyncio.gather(
                *(asyncio.to_thread(receive, path, rank) for rank in range(1, workers + 1))
            )
        for came, received in results:
            own = {
                name: tensor for name, tensor in wanted.items() if not name.startswith(file.HEAD)
            }
            assert set(came) == set(own) == set(received.samples)
            assert all(
                torch.equal(came[name], tensor.to(getattr(torch, dtype)))
                for name, tensor in own.items()
            )
            samples = readback.samples(
                file.read_tensors(source.folder.find(published.policy.digest)),
                published.policy.digest,
            )
            for name, sample in samples.items():
                mine = received.samples[name]
                for side in ("columns", "rows", "whole"):
                    a, b = getattr(sample, side), getattr(mine, side)
                    assert (a is None) == (b is None) and (a is None or torch.equal(a, b)), (
                        name,
                        side,
                    )
        assert not list((tmp_path / "node").glob("*.bin")) and handover.read(path) is None


async def test_nodes_are_served_at_once(source: Learner, tmp_path: Path) -> None:
    published = source.publish()

    async def one(number: int) -> None:
        async with source.node(tmp_path / str(number)).held(published) as path:
            came, _ = await asyncio.to_thread(receive, path, 1)
            assert torch.equal(came["norm.weight"], model()["norm.weight"])

    await asyncio.gather(*(one(number) for number in range(4)))


@pytest.mark.faults
async def test_a_worker_that_dies_holds_nobody_up(
    source: Learner, tmp_path: Path, caplog: Any
) -> None:
    node, published = source.node(tmp_path / "node", 2), source.publish()
    begun = time.monotonic()
    with pytest.raises(TemporaryError, match="the hand-over broke"):
        async with node.held(published) as path:
            other = asyncio.create_task(asyncio.to_thread(receive, path, 2))
            assert await dying(path, 1, 3) == DEAD
            await other
    assert time.monotonic() - begun < handover.STEP_S / 2
    async with node.held(published) as path:
        await asyncio.gather(*(asyncio.to_thread(receive, path, rank) for rank in (1, 2)))


@pytest.mark.faults
@pytest.mark.parametrize("after_s", [0.2, 0.35])
def test_a_learner_that_dies_amid_a_broadcast_is_noticed(after_s: float) -> None:
    """gloo alone would wait a minute for the rest of the bytes, and another for its group."""
    code = (
        "import sys; from tests.weights.handovers import broadcasting as b; b(float(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(after_s)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        place = handover.Place(**json.loads(process.stdout.readline()))
        ranks, flat_B = handover.join(place, 1), torch.zeros(AMID_BYTES, dtype=torch.uint8)
        with pytest.raises(TemporaryError, match="the hand-over broke"):
            while True:
                begun = time.monotonic()
                ranks.broadcast(flat_B)
        ranks.close()
        assert time.monotonic() - begun < handover.STEP_S / 2
        assert process.wait(20) == -signal.SIGKILL


async def test_a_byte_that_changed_on_the_way_is_seen(
    source: Learner, tmp_path: Path, monkeypatch: Any
) -> None:
    read_flat = file.read_flat

    def changed(manifest: file.WeightManifest) -> torch.Tensor:
        flat_B = read_flat(manifest).clone()
        flat_B[len(flat_B) // 2] ^= 1
        return flat_B

    monkeypatch.setattr(collective.file, "read_flat", changed)
    with pytest.raises(InvalidInput, match=r"handed over digest to \w{16} instead of \w{16}"):
        async with source.node(tmp_path / "node").held(source.publish()) as path:
            await asyncio.to_thread(receive, path, 1)


async def test_the_same_weights_under_a_new_number_do_not_come_again(
    source: Learner, tmp_path: Path, eventually: Any
) -> None:
    node, published = source.node(tmp_path / "node"), source.publish()
    async with node.held(published) as path:
        await asyncio.to_thread(receive, path, 1)
    async with node.held(published) as path:
        assert path.is_file() and handover.read(path) is None
    with pytest.raises(RuntimeError, match="of the engine"):
        async with node.held(published):
            raise RuntimeError("of the engine")
    other = source.publish(1)
    with pytest.raises(RuntimeError, match="of the engine"):
        async with node.held(other):
            raise RuntimeError("of the engine")
    await eventually(lambda: not source.hand_overs._under_way, 20.0, "no hand-over under way")
    async with node.held(other) as path:
        await asyncio.to_thread(receive, path, 1)


async def test_workers_that_never_come_are_not_waited_for(
    source: Learner, tmp_path: Path, eventually: Any
) -> None:
    """A node that gives up ends it at the learner too, and soon gets another hand-over."""
    published, before = source.publish(), time.monotonic()
    for number in range(2 * collective.AT_ONCE):
        with pytest.raises(RuntimeError, match="of the engine"):
            async with source.node(tmp_path / f"node-{number % 3}").held(published):
                raise RuntimeError("of the engine")
        await eventually(lambda: not source.hand_overs._under_way, 20.0, "no hand-over under way")
    assert time.monotonic() - before < 20.0


async def test_a_node_that_hangs_up_amid_the_sending_ends_it(
    source: Learner, tmp_path: Path, eventually: Any
) -> None:
    """Its thread ends at the next piece; until then the node gets no second hand-over."""
    published, slow, begun = source.publish(), threading.Event(), threading.Event()
    broadcast = handover.Ranks.broadcast

    def halting(self: handover.Ranks, flat_B: torch.Tensor) -> None:
        begun.set()
        slow.wait(20.0)
        broadcast(self, flat_B)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover.Ranks, "broadcast", halting)
        with pytest.raises(RuntimeError, match="of the engine"):
            async with source.node(tmp_path / "node").held(published) as path:
                receiving = asyncio.create_task(asyncio.to_thread(receive, path, 1))
                await eventually(begun.is_set, 10.0, "all ranks there")
                raise RuntimeError("of the engine")
        with pytest.raises(TemporaryError, match=r"node 'node' is handed weights; ask again"):
            async with source.node(tmp_path / "node").held(published):
                pass
        slow.set()
        with pytest.raises(TemporaryError):
            await receiving
    await eventually(lambda: not source.hand_overs._under_way, 20.0, "no hand-over under way")
    async with source.node(tmp_path / "node").held(published) as path:
        await asyncio.to_thread(receive, path, 1)


async def test_a_learner_waits_for_workers_but_not_for_ever(
    source: Learner, tmp_path: Path, monkeypatch: Any
) -> None:
    source.hand_overs._wait_s = 0.3
    monkeypatch.setattr(handover, "STEP_S", 3.0)
    errors: list[str] = []
    with pytest.raises(TemporaryError, match=r"no hand-over|do not find|broke"):
        async with source.node(tmp_path / "node", 2).held(source.publish()) as path:
            try:
                async for _ in source.node(tmp_path / "more", 2)._hand_over(source.publish(1), []):
                    pass
            except BanyanError as error:
                errors.append(str(error))
            await asyncio.to_thread(receive, path, 1)
    assert "rank 1 did not come to the hand-over in 0.3 s" in errors[0]


async def test_what_cannot_be_handed_over_is_said(
    source: Learner, tmp_path: Path, monkeypatch: Any
) -> None:
    node, published = source.node(tmp_path / "node"), source.publish()
    for seed in range(1, 4):
        source.publish(seed)
    with pytest.raises(NotFound, match="fetch the newest"):
        async with node.held(published):
            pass
    newest = source.publish(9)
    with pytest.raises(InvalidInput, match="to 0 workers"):
        async with source.node(tmp_path / "node", 0).held(newest):
            pass
    source.hand_overs._under_way = {str(number) for number in range(collective.AT_ONCE)}
    with pytest.raises(TemporaryError, match="8 nodes are handed weights"):
        async with node.held(newest):
            pass


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=30),
    most=st.integers(1, 20_000),
)
def test_pieces_are_the_whole_file_with_each_tensor_whole(sizes: list[int], most: int) -> None:
    tensors = {f"t{n:02}": torch.zeros(size) for n, size in enumerate(sizes)}
    entries, aliases, size = file._layout(tensors, "bfloat16")
    manifest = file.WeightManifest(Path("w.bin"), 1, 0, b"", size, entries, aliases)
    parts = list(handover.pieces(manifest, most))
    at = 0
    for piece in parts:
        assert piece.offset == at and piece.offset % file.ALIGN_BYTES == 0
        at += piece.bytes
        flat_B = torch.zeros(piece.bytes, dtype=torch.uint8)
        for entry in piece.entries:
            assert piece.offset <= entry.offset and entry.offset + entry.bytes <= at
            assert tuple(file.cut(flat_B, piece.offset, entry).shape) == entry.shape
        assert (
            piece.bytes - most < max((e.bytes for e in piece.entries), default=0) + file.ALIGN_BYTES
        )
    assert at == (size if entries else 0)
    assert sorted(e.name for p in parts for e in p.entries) == sorted(e.name for e in entries)


def test_tensors_that_overlap_are_refused() -> None:
    entries = tuple(
        file.TensorEntry(n, (100,), "float32", at, 400) for n, at in (("a", 0), ("b", 64))
    )
    manifest = file.WeightManifest(Path("w.bin"), 1, 0, b"", 500, entries, {})
    with pytest.raises(InvalidInput, match="tensor a of step 0 lies over the next one"):
        list(handover.pieces(manifest, 1))


def test_nccl_carries_between_accelerators_that_differ(monkeypatch: Any) -> None:
    monkeypatch.setattr(handover, "_device_id", lambda at: "abc"[at])
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert handover.choose(first, ["b", "c"]) == handover.choose(second, ["a"]) == "nccl"
    assert handover.choose(first, ["b", "a"]) == handover.choose(first, []) == "gloo"
    assert handover.choose(torch.device("cpu"), ["b"]) == "gloo", (
        "whatever else this process may see"
    )


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000", "ipv6:[::1]:5000"])
def test_a_node_is_told_the_address_that_it_asked_at(peer: str) -> None:
    host, port = collective._address(peer)
    assert (host, port) in (("127.0.0.1", 5000), ("::1", 5000))
    assert handover.own_address("127.0.0.1", 5000) == "127.0.0.1"
    with pytest.raises(InvalidInput, match="it needs an address of IP"):
        collective._address("unix:/tmp/socket")


def test_workers_are_counted_by_the_sizes_that_vllm_is_given() -> None:
    def of(arguments: dict[str, int]) -> int:
        return handed.workers(Resources(engine="vllm", engine_settings={"arguments": arguments}))

    assert handed.workers(Resources(engine="vllm")) == of({}) == 1
    assert of({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}) == 8
    with pytest.raises(
        InvalidInput, match=r"tensor_parallel_size 'x' must be a whole number of at least 1"
    ):
        of({"tensor_parallel_size": "x"})  # type: ignore[dict-item]


def test_a_collective_that_never_ends_is_given_up(monkeypatch: Any) -> None:
    """NCCL has no deadline of its own."""

    class Never:
        def is_completed(self) -> bool:
            return False

    monkeypatch.setattr(handover, "STEP_S", 0.3)
    ranks = object.__new__(handover.Ranks)
    ranks._check, ranks._broken, ranks._limit = (lambda: None), False, timedelta(seconds=1)
    with pytest.raises(
        TemporaryError, match=r"the hand-over broke: a collective did not end in 0.3 s"
    ):
        ranks._wait(Never())
