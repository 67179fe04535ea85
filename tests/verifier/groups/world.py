"""A real broker and treestore, with a verifier of whole groups on them."""

import asyncio
import contextlib
from collections.abc import Sequence

from banyan.signals import Signals
from banyan.v1 import tree_pb2
from services.verifier.groups import GroupConsumer, GroupHandler
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.store import GrpcStore
from tests.treestore.client import Store

RECIPE = {
    "name": "test",
    "model": "tiny",
    "task": {"name": "arithmetic"},
    "filter": [{"name": "majority", "settings": {"take": "last"}}],
    "eval": {"filter": [{"name": "number"}]},
}
VOTE = {"scorers": ["majority"], "group_scorers": ["majority"]}


def store_of(store: Store) -> GrpcStore:
    made = GrpcStore.__new__(GrpcStore)
    made._trees, made._runs = store.trees, store.runs
    made._specs, made._reading = {}, {}
    return made


@contextlib.asynccontextmanager
async def verifier(store: Store, publisher=None):
    stop = asyncio.Event()
    scoring = Scoring(Pool(Limits(deadline_s=2.0)))
    handler = GroupHandler(store_of(store), publisher or BusPublisher(store.bus), scoring, "v1")
    task = asyncio.create_task(GroupConsumer(store.bus, handler).run(stop))
    try:
        yield task
    finally:
        stop.set()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await scoring.close()


async def grow(
    store: Store, spec: tree_pb2.TreeSpec, texts: list[str], heads: Sequence[float] = ()
) -> None:
    """Grow a tree with an answer on each branch, whose last token the head scored, if any."""
    forge = store.forge
    await store.publish(forge.opened(spec, store.epoch))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    signals = [Signals(head_T=[0.0, 0.0, 1.0, head]) for head in heads] or [Signals()] * len(texts)
    leaves = [
        forge.child(root, n, text=text, signals=said)
        for n, (text, said) in enumerate(zip(texts, signals, strict=True))
    ]
    said = [
        forge.segments(root, *leaves, epoch=epoch),
        *(forge.leaf(leaf, epoch=epoch) for leaf in leaves),
    ]
    await store.publish(*said, forge.grown(spec.tree_id, *leaves, epoch=epoch))
