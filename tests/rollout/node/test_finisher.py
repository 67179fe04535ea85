"""Completion of trees and renewal of claims, against a store that answers as the test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from banyan.errors import BanyanError, NotFound, PermanentError, Refused, TemporaryError
from banyan.plugins.traits import PolicyTraits
from banyan.segment import Kind, Segment
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus as Broker
from services.chassis.process.telemetry import Span
from services.rollout.clients import messages
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.node import completion
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.config import NodeConfig
from services.rollout.node.lease_renewal import LeaseRenewer
from services.rollout.ports import Ingested
from services.rollout.timeouts import BackgroundTasks

NOTHING = Ingested(frozenset(), False, ())
WHOLE = Ingested(frozenset(), True, ())


@dataclass
class Delivery:
    data: bytes = b""
    answers: list[str] = field(default_factory=list)

    async def ack(self) -> None:
        self.answers.append("ack")

    async def nak(self, delay_s: float) -> None:
        self.answers.append("nak")

    async def in_progress(self) -> None:
        self.answers.append("in_progress")

    async def term(self) -> None:
        self.answers.append("term")


class Store:
    """A store that never has a tree, and cannot be reached for renewals."""

    def __init__(self) -> None:
        self.calls = 0

    async def await_ingested(self, *args: object) -> Ingested:
        self.calls += 1
        return NOTHING

    async def renew(self, tree_id: bytes, epoch: int) -> None:
        raise TemporaryError("the store is being started again")


class Bus:
    async def publish(self, *args: object, **more: object) -> int:
        return 1


def active_tree(tree_id: bytes = b"t" * 32, grower: Any = None) -> ActiveTree:
    spec: Any = SimpleNamespace(tree_id=tree_id, run_id="r", traits=PolicyTraits(), traceparent="")
    tree = ActiveTree(spec=spec, grower=grower, epoch=1, delivery=Delivery(), span=Span())
    tree.enter(TreeState.GROWING)
    return tree


def answers(tree: ActiveTree) -> list[str]:
    assert isinstance(tree.delivery, Delivery)
    return tree.delivery.answers


def completer(store: Any, publisher: Publisher, trees: ActiveTrees) -> TreeCompleter:
    return TreeCompleter(
        NodeConfig(run_id="r", node_id="n", max_branches=8),
        store,
        publisher,
        blobs=Blobs(store),
        trees=trees,
        tasks=BackgroundTasks(),
    )


def renewer(store: Any, trees: ActiveTrees, stats: Any) -> LeaseRenewer:
    """Return a renewer that drops nothing and reads the engine's steps by `stats`."""

    async def drop(*args: object, **more: object) -> None:
        raise AssertionError("nothing is dropped")

    return LeaseRenewer(
        store,
        SimpleNamespace(stats=stats),  # type: ignore[arg-type]
        trees,
        executor=SimpleNamespace(drop=drop),  # type: ignore[arg-type]
        segment_deadline_s=120.0,
    )


@asynccontextmanager
async def sending(publisher: Publisher) -> AsyncIterator[None]:
    task = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        task.cancel()


async def test_a_store_that_never_takes_a_tree_is_asked_a_few_times(
    eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that became a dead letter would otherwise keep the tree here for good."""
    monkeypatch.setattr(completion, "_WAIT_S", 0.01)
    trees, store, publisher = ActiveTrees(8, 8), Store(), Publisher(Bus())  # type: ignore[arg-type]
    tree = active_tree()
    trees.put(tree)
    tree.end_published.set()
    tree.events.append(messages.grown("r", "n", tree.spec.tree_id, 1, []))
    async with sending(publisher):
        completer(store, publisher, trees).begin(tree)
        await eventually(lambda: len(trees) == 0)
    assert store.calls == 6 and answers(tree) == ["nak"]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [("ORDINAL_TAKEN", "REFUSED: ORDINAL_TAKEN"), ("PATH_TOO_LONG", "UNUSABLE: PATH_TOO_LONG: ")],
)
async def test_a_tree_with_a_refused_segment_is_returned_by_the_rule(
    eventually: Any, monkeypatch: pytest.MonkeyPatch, rule: str, reason: str
) -> None:
    """A path that is too long is that on every node: its tree is not queued again and again."""
    monkeypatch.setattr(completion, "_PAUSE_S", 0.0)

    class Refusing(Store):
        said: str = ""

        async def await_ingested(self, *args: object) -> Ingested:
            return Ingested(frozenset(), False, (rule, "PARENT_REFUSED"))

        async def return_tree(self, tree_id: bytes, epoch: int, said: str) -> None:
            self.said = said

    trees, store, bus = ActiveTrees(8, 8), Refusing(), Bus()
    tree = active_tree()
    trees.put(tree)
    tree.end_published.set()
    completer(store, Publisher(bus), trees).begin(tree)  # type: ignore[arg-type]
    await eventually(lambda: len(trees) == 0)
    assert store.said.startswith(reason) and answers(tree) == ["ack"]


async def test_a_completion_that_fails_of_itself_leaves_no_tree_claimed(
    eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_PAUSE_S", 0.0)

    class Failing(Store):
        async def await_ingested(self, *args: object) -> Ingested:
            raise UnicodeError("of any kind")

    trees, tree = ActiveTrees(8, 8), active_tree()
    publisher = Publisher(Bus())  # type: ignore[arg-type]
    trees.put(tree)
    tree.end_published.set()
    completer(Failing(), publisher, trees).begin(tree)
    await eventually(lambda: len(trees) == 0)
    await eventually(lambda: answers(tree) == ["nak"])


async def test_missing_events_are_published_again_under_new_ids(
    nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker drops ids that it saw in the last two minutes, and acknowledges them."""
    monkeypatch.setattr(completion, "_PAUSE_S", 0.0)
    bus = await Broker.connect(nats_server.url, "test")
    await bus.ensure_streams()
    tree = active_tree()
    root = Segment(tree.spec.tree_id, b"", 0, 0, Kind.PROMPT, np.arange(3))
    tree.segments.append(root)
    tree.events.append(messages.grown("r", "n", tree.spec.tree_id, 1, []))

    class Lacking(Store):
        """A store that lacks the segment twice."""

        async def await_ingested(self, *args: object) -> Ingested:
            self.calls += 1
            return Ingested(frozenset({root.id}), False, ()) if self.calls < 3 else WHOLE

    trees, publisher = ActiveTrees(8, 8), Publisher(bus)
    async with sending(publisher):
        for event in [*messages.segments("r", "n", [(root, 1)]), *tree.events]:
            await publisher.put(event)
        await publisher.flush(10.0)
        trees.put(tree)
        tree.end_published.set()
        completer(Lacking(), publisher, trees).begin(tree)
        async with asyncio.timeout(10):
            while len(trees):
                await trees.changed.wait()
                trees.changed.clear()
    assert answers(tree) == ["ack"]
    info = await bus._js.stream_info(subjects.LINEAGE, subjects_filter=">")
    counts = {subjects.lineage("r", "segment"): 3, subjects.lineage("r", "grown"): 3}
    assert info.state.subjects == counts
    await bus.close()


@pytest.mark.parametrize(
    "outcomes", [[PermanentError("AwaitTreesIngested failed"), WHOLE], [NotFound("no tree")]]
)
async def test_an_error_about_another_tree_holds_none_up(
    outcomes: list[Any], eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees share a call: the store is asked again after an error; an unknown tree is released."""
    monkeypatch.setattr(completion, "_RETRY_S", 0.01)

    class Answering(Store):
        async def await_ingested(self, *args: object) -> Ingested:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            assert isinstance(outcome, Ingested)
            return outcome

    trees, tree = ActiveTrees(8, 8), active_tree()
    trees.put(tree)
    tree.end_published.set()
    publisher = Publisher(Bus())  # type: ignore[arg-type]
    completer(Answering(), publisher, trees).begin(tree)
    await eventually(lambda: len(trees) == 0)
    assert answers(tree) == ["ack"] and not outcomes


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotFound("no tree"), ["ack"]),
        (PermanentError("ReturnTree failed"), []),
        (TemporaryError("away"), []),
        (Refused("another has it", "STALE_EPOCH"), []),
        (Refused("it is over", "NOT_GROWING"), ["ack"]),
    ],
)
async def test_a_tree_that_cannot_be_returned_ends_no_node(
    error: BanyanError, expected: list[str]
) -> None:
    class Refusing(Store):
        async def return_tree(self, *args: object) -> None:
            raise error

    trees, tree = ActiveTrees(8, 8), active_tree()
    trees.put(tree)
    publisher = Publisher(Bus())  # type: ignore[arg-type]
    await completer(Refusing(), publisher, trees).return_tree(tree, "the node ends")
    assert len(trees) == 0 and answers(tree) == expected


async def test_a_progressing_tree_is_kept_while_the_store_is_away() -> None:
    """Otherwise the broker gives it to another node, which cannot claim it either."""
    trees = ActiveTrees(8, 8)
    progressing, still = active_tree(), active_tree(b"u" * 32)
    for tree in (progressing, still):
        trees.put(tree)
    still.progressed_at -= 1000

    async def stats() -> Any:
        return SimpleNamespace(steps=0)

    await renewer(Store(), trees, stats).renew_progressing()
    assert answers(progressing) == ["in_progress"] and answers(still) == []


@pytest.mark.parametrize("steps", [1, 0])
async def test_a_tree_is_kept_while_the_engine_computes(steps: int) -> None:
    """vLLM counts a segment's tokens when it ends, which may take longer than the deadline."""
    trees, total = ActiveTrees(8, 8), 0
    tree = active_tree(grower=SimpleNamespace(in_flight={"branch": 1}))
    trees.put(tree)

    async def stats() -> Any:
        nonlocal total
        total += steps
        return SimpleNamespace(steps=total)

    renewals = renewer(Store(), trees, stats)
    for _ in range(3):
        tree.progressed_at -= 1000
        await renewals.renew_progressing()
    assert answers(tree) == ["in_progress"] * 3 * steps
