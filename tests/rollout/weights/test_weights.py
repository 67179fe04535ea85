"""Weight files and their transfer to a host: whole, checked, resumed after a break."""

import contextlib

import pytest
import torch
from blake3 import blake3

from banyan.errors import InvalidInput, NotFound, TemporaryError
from banyan.policy import PolicyVersion
from banyan.v1 import learner_service_pb2 as pb
from services.chassis.weights import file
from services.rollout.growth.policy_selection import Published, wanted
from services.rollout.weights.fetch import Weights
from tests.rollout.growing import IID, spec


def tensors(seed=0):
    torch.manual_seed(seed)
    shared = torch.randn(70, 3)
    return {
        "b": torch.randn(5, 1000),
        "a": torch.randn(1),
        "embed": shared,
        "head": shared,
        "none": torch.zeros(0, 4),
    }


def test_a_weight_file_gives_back_what_was_written(tmp_path):
    written = tensors()
    manifest = file.write(tmp_path, "policy-2-7", written, 2, 7)
    assert manifest.aliases == {"head": "embed"} and (manifest.epoch, manifest.step) == (2, 7)
    reopened = file.open_verified(tmp_path / "policy-2-7.json")
    assert reopened == manifest
    read = file.read_tensors(reopened)
    assert set(read) == set(written)
    for name, tensor in written.items():
        assert read[name].dtype is torch.bfloat16 and torch.equal(read[name], tensor.bfloat16())
    assert read["head"].data_ptr() == read["embed"].data_ptr()
    exact = file.read_tensors(file.write(tmp_path, "policy-2-8", written, 2, 8, dtype="float32"))
    assert all(torch.equal(exact[n], t) for n, t in written.items())
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"policy-2-{s}.{e}" for s in (7, 8) for e in ("bin", "json")
    ]


def test_the_digest_is_blake3_of_the_files_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")  # digest from the BLAKE3 test vectors
    expected = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    assert file.digest_of(tmp_path / "abc").hex() == expected
    (tmp_path / "empty").touch()
    assert file.digest_of(tmp_path / "empty").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    manifest = file.write(tmp_path, "w", tensors(), 1, 0)
    assert manifest.digest == blake3(manifest.path.read_bytes()).digest()


def test_a_flipped_bit_a_short_file_and_a_bad_manifest_are_refused(tmp_path):
    manifest = file.write(tmp_path, "w", tensors(), 1, 0)
    data = bytearray(manifest.path.read_bytes())
    data[1234] ^= 1
    manifest.path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"digests to .* fetch it again"):
        file.open_verified(manifest.manifest_path)
    manifest.path.write_bytes(data[:-1])
    with pytest.raises(InvalidInput, match=r"holds .* bytes, its manifest says"):
        file.open_verified(manifest.manifest_path)
    manifest_text = manifest.to_json()
    wrong = [
        manifest_text.replace('"offset": 0', f'"offset": {offset}')
        for offset in ("64000000", '"0"', "null")
    ]
    wrong += [
        manifest_text.replace(f'"bytes": {manifest.bytes},', '"bytes": Infinity,'),
        manifest_text.replace('"aliases": {', '"aliases": 1, "x": {'),
    ]
    assert manifest_text not in wrong
    for text in ("{", "[]", '{"epoch": 1}', *wrong):
        with pytest.raises(InvalidInput, match=r"unusable|outside"):
            file.from_json(text, manifest.path)
    manifest.path.unlink()
    with pytest.raises(NotFound, match="are no weights"):
        file.open_verified(manifest.manifest_path)


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        file.write(tmp_path, "w", tensors(), 1, 0)
    assert list(tmp_path.iterdir()) == []


class Learner:
    """A learner that streams a weight file in pieces, and may break off."""

    def __init__(self, manifest):
        self.manifest, self.data = manifest, manifest.path.read_bytes()
        self.asked, self.break_at, self.flip = [], None, False

    async def fetch(self, published, offset):
        self.asked.append(offset)
        for at in range(offset, len(self.data), 3000):
            if self.break_at is not None and at >= self.break_at:
                raise TemporaryError("the line is cut")
            data = bytearray(self.data[at : at + 3000])
            if self.flip:
                data[0] ^= 1
            text = self.manifest.to_json() if at == offset else ""
            yield pb.FetchWeightsResponse(
                offset=at, data=bytes(data), total=len(self.data), manifest_json=text
            )


def published(manifest, folder):
    policy = PolicyVersion(manifest.epoch, manifest.step, manifest.digest)
    return Published(policy, folder, "learner:1", manifest.bytes)


async def located(weights, policy):
    async with weights.held(policy) as path:
        return path


async def test_weights_on_this_host_are_read_in_place(tmp_path):
    manifest = file.write(tmp_path / "shm", "policy-1-3", tensors(), 1, 3)
    learner = Learner(manifest)
    path = await located(
        Weights(tmp_path / "own", learner.fetch), published(manifest, tmp_path / "shm")
    )
    assert path == manifest.manifest_path and not learner.asked


async def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path):
    manifest = file.write(tmp_path / "far", "policy-1-3", tensors(), 1, 3)
    learner, weights = Learner(manifest), None
    weights = Weights(tmp_path / "own", learner.fetch)
    learner.break_at = 6000
    with pytest.raises(TemporaryError, match="cut"):
        await located(weights, published(manifest, tmp_path / "elsewhere"))
    learner.break_at = None
    path = await located(weights, published(manifest, tmp_path / "elsewhere"))
    assert learner.asked == [0, 6000]
    assert torch.equal(file.read_tensors(file.open_verified(path))["b"], tensors()["b"].bfloat16())
    assert (
        await located(weights, published(manifest, tmp_path / "elsewhere")) == path
        and len(learner.asked) == 2
    )


async def test_weights_that_came_wrong_are_fetched_anew(tmp_path):
    manifest = file.write(tmp_path / "far", "policy-1-3", tensors(), 1, 3)
    learner = Learner(manifest)
    weights = Weights(tmp_path / "own", learner.fetch)
    learner.flip = True
    with pytest.raises(InvalidInput, match="digests to"):
        await located(weights, published(manifest, tmp_path / "elsewhere"))
    learner.flip = False
    await located(weights, published(manifest, tmp_path / "elsewhere"))
    assert learner.asked == [0, 0]


async def test_only_the_newest_downloads_are_kept(tmp_path):
    for step in range(4):
        manifest = file.write(tmp_path / "far", f"policy-1-{step}", tensors(step), 1, step)
        await located(
            Weights(tmp_path / "own", Learner(manifest).fetch),
            published(manifest, tmp_path / "elsewhere"),
        )
    assert sorted(p.name for p in (tmp_path / "own").glob("*.bin")) == [
        "policy-1-2.bin",
        "policy-1-3.bin",
    ]


async def test_a_full_disk_is_said_and_another_try_may_help(tmp_path):
    manifest, own = file.write(tmp_path / "far", "policy-1-3", tensors(), 1, 3), tmp_path / "own"
    wanted_now, weights = (
        published(manifest, tmp_path / "elsewhere"),
        Weights(own, Learner(manifest).fetch),
    )
    own.mkdir()
    part = own / f"{manifest.digest.hex()[:16]}.part"
    part.symlink_to("/dev/full")
    with pytest.raises(
        TemporaryError,
        match=r"cannot write weights to .*own: No space left on device; is there room",
    ):
        await located(weights, wanted_now)
    part.unlink()
    await located(weights, wanted_now)


async def test_a_torn_manifest_is_fetched_anew(tmp_path):
    manifest, own = file.write(tmp_path / "far", "policy-1-3", tensors(), 1, 3), tmp_path / "own"
    own.mkdir()
    (own / "policy-1-3.json").write_text("")
    learner = Learner(manifest)
    assert await located(Weights(own, learner.fetch), published(manifest, tmp_path / "elsewhere"))
    assert learner.asked == [0]


async def test_what_broken_transfers_left_goes_with_the_next(tmp_path):
    for step in range(3):
        manifest = file.write(tmp_path / "far", f"policy-1-{step}", tensors(step), 1, step)
        learner = Learner(manifest)
        learner.break_at = 6000 if step < 2 else None
        weights = Weights(tmp_path / "own", learner.fetch)
        with contextlib.suppress(TemporaryError):
            await located(weights, published(manifest, tmp_path / "elsewhere"))
        assert len(list((tmp_path / "own").glob("*.part"))) == (step < 2)


def at(epoch, step):
    return Published(PolicyVersion(epoch, step, bytes([epoch, step])), None, "", 0)


def tree(min_step=0, max_step=None):
    return spec(IID, {}, min_step=min_step, max_step=max_step)


@pytest.mark.parametrize(
    "loaded,live,pending,expected",
    [
        (None, [], [], (2, 3)),
        ((1, 4), [tree()], [], (2, 3)),  # a newer learner epoch overrules a higher step
        ((2, 3), [tree()], [tree()], None),
        ((1, 2), [tree(0, 2)], [tree(3)], None),  # a live tree wants the old one exactly
        ((2, 3), [], [tree(1, 1)], (1, 1)),  # an exact wish for an older one, and nothing is live
        ((2, 3), [tree()], [tree(1, 1)], None),
        ((2, 3), [], [tree(9)], None),  # not there yet
    ],
)
def test_which_policy_to_load(loaded, live, pending, expected):
    known = [at(1, 0), at(1, 1), at(1, 4), at(2, 3)]
    current = at(*loaded).policy if loaded else None
    target = wanted(known, current, live, pending)
    assert (target and (target.policy.epoch, target.policy.step)) == expected
    assert wanted([], current, live, pending) is None
