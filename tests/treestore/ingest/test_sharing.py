"""Tokens that paths share, and sampled tokens that are on none."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from banyan.segment import Finish, Kind, Origin
from banyan.tree import Leaf
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire.plain_data import saved_tokens, unused_tokens
from services.treestore.control import progress
from services.treestore.ingest import sharing
from services.treestore.unit_of_work.rows import ANSWER, SegmentHeader
from tests.treestore.forge import World


def samples(world: World) -> rs.SampleCounts:
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    return read.samples


def test_tokens_on_no_path_are_unused_and_take_nothing_from_what_is_saved(world: World) -> None:
    """A trunk of 10 tokens, of which 8 are shared; a cut branch; a tree that is dropped."""
    forge, spec = world.forge, world.forge.spec()
    epoch = world.open(spec)
    root = forge.root(spec)
    trunk = forge.child(root, 0, length=10)
    ends = [forge.child(trunk, ordinal, length=2, fork=8) for ordinal in range(3)]
    cut = forge.child(trunk, 3, length=50, fork=8)
    world.ingest(forge.segments(root, trunk, *ends, cut, epoch=epoch))
    growing = samples(world)
    assert (saved_tokens(growing), unused_tokens(growing)) == (0, 66), "it still grows"
    world.ingest(forge.grown(spec.tree_id, *ends, epoch=epoch))  # in a later transaction
    counts = samples(world)
    assert (counts.path_tokens, counts.unique_tokens, counts.used_tokens) == (30, 14, 14)
    assert saved_tokens(counts) == 16 + 2 * 3, "the trunk and the prompt of 3 tokens, read once"
    assert unused_tokens(counts) == 2 + 50


def test_tokens_that_nobody_sampled_are_shared_too(world: World) -> None:
    forge, spec = world.forge, world.forge.spec()
    epoch = world.open(spec)
    root = forge.root(spec)
    forced = forge.child(
        root,
        0,
        length=5,
        kind=Kind.FORCED,
        origin=Origin.BRANCH,
        sampled_logprobs_T=np.zeros(5),
    )
    ends = [forge.child(forced, ordinal, length=2) for ordinal in range(2)]
    world.ingest(
        forge.segments(root, forced, *ends, epoch=epoch),
        forge.grown(spec.tree_id, *ends, epoch=epoch),
    )
    counts = samples(world)
    assert (counts.path_tokens, counts.unique_tokens, counts.used_tokens) == (14, 9, 4)
    assert unused_tokens(counts) == 0 and saved_tokens(counts) == 5 + 3


def test_a_tree_without_a_leaf_saves_nothing(world: World) -> None:
    forge, spec = world.forge, world.forge.spec()
    epoch = world.open(spec)
    root = forge.root(spec)
    world.ingest(
        forge.segments(root, forge.child(root), epoch=epoch),
        forge.grown(spec.tree_id, epoch=epoch),
    )
    counts = samples(world)
    assert (saved_tokens(counts), unused_tokens(counts)) == (0, 4)


def test_what_an_older_store_counted_is_never_shown_below_nothing() -> None:
    counts = rs.SampleCounts(path_tokens=9, unique_tokens=9, prompt_tokens=30)
    assert saved_tokens(counts) == 0


@given(
    parents=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), st.booleans()), max_size=30),
    ends=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=20),
)
def test_a_token_counts_once_however_many_paths_share_it(
    parents: list[tuple[int, int, bool]], ends: list[tuple[int, int]]
) -> None:
    """On any tree of segments of 9 tokens the sum is that of the paths' sets of tokens."""
    headers = {b"s0": _header(0, b"", 0, Kind.PROMPT)}
    for number, (parent, fork, forced) in enumerate(parents, 1):
        kind = Kind.FORCED if forced else Kind.POLICY
        headers[b"s%d" % number] = _header(number, b"s%d" % (parent % number), fork, kind)
    leaves = {Leaf(b"s%d" % (segment % len(headers)), end) for segment, end in ends}
    for kinds in (ANSWER, {int(Kind.POLICY)}):
        paths = [set(_path(headers, leaf, kinds)) for leaf in leaves]
        reached = sharing.reached(headers, leaves)
        unique = sharing.tokens(headers, reached, kinds)
        assert unique == len(set.union(*paths)) <= sum(map(len, paths))


def _header(number: int, parent: bytes, fork: int, kind: Kind) -> SegmentHeader:
    return SegmentHeader(
        id=b"s%d" % number,
        tree_id=b"t",
        parent=parent,
        fork=fork,
        ordinal=number,
        length=9,
        kind=int(kind),
        finish=int(Finish.STOP),
        prefix_sampled=0,
    )


def _path(
    headers: dict[bytes, SegmentHeader], leaf: Leaf, kinds: "frozenset[int] | set[int]"
) -> list[tuple[bytes, int]]:
    found, segment, end = [], leaf.segment, leaf.end
    while segment:
        if headers[segment].kind in kinds:
            found += [(segment, token) for token in range(end)]
        segment, end = headers[segment].parent, headers[segment].fork
    return found
