"""Ending trees and keeping claims, against a store that says what a test wants."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from banyan.errors import BanyanError, NotFound, PermanentError, Refused, TemporaryError
from banyan.segment import Kind, Segment
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus as Broker
from services.chassis.process.telemetry import Span
from services.rollout.clients import messages
from services.rollout.clients.publisher import Publisher
from services.rollout.node import completion as module
from services.rollout.node.active_trees import ActiveTree, Trees
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.lease_renewal import LeaseRenewer
from services.rollout.ports import Ingested


@dataclass
class Delivery:
    data: bytes = b""
    said: list[str] = field(default_factory=list)

    async def ack(self) -> None:
        self.said.append("ack")

    async def nak(self, delay_s: float) -> None:
        self.said.append("nak")

    async def in_progress(self) -> None:
        self.said.append("in_progress")

    async def term(self) -> None:
        self.said.append("term")


class Store:
    """Never has what it is asked for, and cannot be reached to renew."""

    def __init__(self) -> None:
        self.asked = 0

    async def ingested(self, *args: object) -> Ingested:
        self.asked += 1
        return Ingested(frozenset(), False, ())

    async def renew(self, tree_id: bytes, epoch: int) -> None:
        raise TemporaryError("the store is being started again")


class Bus:
    async def publish(self, *args: object, **more: object) -> int:
        return 1


def _live(grower: Any = None) -> ActiveTree:
    spec: Any = SimpleNamespace(tree_id=b"t" * 32, run_id="r", width=1, traceparent="")
    live = ActiveTree(spec, grower, 1, Delivery(), Span())  # type: ignore[arg-type]
    live.started = True
    return live


async def test_a_store_that_never_takes_a_tree_is_not_asked_for_ever(
    eventually, monkeypatch
) -> None:
    """A segment that the store buried would keep the tree alive here for good."""
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    trees, store, publisher = Trees(8, 8), Store(), Publisher(Bus())  # type: ignore[arg-type]
    sending = asyncio.create_task(publisher.run())
    live = _live()
    trees.put(live)
    live.grown.set()
    live.told.append(messages.grown("r", "n", live.spec.tree_id, 1, []))
    TreeCompleter(store, publisher, trees, "r", "n").begin(live)  # type: ignore[arg-type]
    await eventually(lambda: len(trees) == 0)
    assert store.asked == 6 and live.delivery.said == ["nak"]  # type: ignore[attr-defined]
    sending.cancel()


async def test_what_the_store_lacks_is_published_again_under_ids_that_the_broker_has_not_seen(
    nats_server, monkeypatch
) -> None:
    """It drops what it has seen in the last two minutes, and says that it has it."""
    monkeypatch.setattr(module, "_LET_S", 0.0)
    bus = await Broker.connect(nats_server.url, "test")
    await bus.ensure_streams()
    live = _live()
    live.segments.append(Segment(live.spec.tree_id, b"", 0, 0, Kind.PROMPT, np.arange(3)))
    live.told.append(messages.grown("r", "n", live.spec.tree_id, 1, []))

    class Lacks(Store):
        """Lacks the segment twice."""

        async def ingested(self, *args: object) -> Ingested:
            self.asked += 1
            return (
                Ingested(frozenset({live.segments[0].id}), False, ())
                if self.asked < 3
                else Ingested(frozenset(), True, ())
            )

    trees, publisher = Trees(8, 8), Publisher(bus)
    sending = asyncio.create_task(publisher.run())
    for event in [*messages.segments("r", "n", [(live.segments[0], 1)]), *live.told]:
        await publisher.put(event)
    await publisher.flush(10.0)
    trees.put(live)
    live.grown.set()
    TreeCompleter(Lacks(), publisher, trees, "r", "n").begin(live)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        while len(trees):
            await trees.changed.wait()
            trees.changed.clear()
    assert live.delivery.said == ["ack"]  # type: ignore[attr-defined]
    info = await bus._js.stream_info(subjects.LINEAGE, subjects_filter=">")
    assert info.state.subjects == {
        subjects.lineage("r", "segment"): 3,
        subjects.lineage("r", "grown"): 3,
    }
    sending.cancel()
    await bus.close()


async def test_an_error_over_another_tree_is_asked_again_and_an_unknown_tree_let_go(
    eventually, monkeypatch
) -> None:
    """Trees are asked for together: what the store has against one must not leave the others held for ever."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.01)

    class Answers(Store):
        def __init__(self, answers: list[Any]) -> None:
            super().__init__()
            self.answers = answers

        async def ingested(self, *args: object) -> Ingested:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

    for answers in (
        [PermanentError("AwaitTreesIngested failed"), Ingested(frozenset(), True, ())],
        [NotFound("no tree")],
    ):
        trees, store, live = Trees(8, 8), Answers(answers), _live()
        trees.put(live)
        live.grown.set()
        TreeCompleter(store, Publisher(Bus()), trees, "r", "n").begin(live)  # type: ignore[arg-type]
        await eventually(lambda held=trees: len(held) == 0)
        assert live.delivery.said == ["ack"] and not store.answers  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotFound("no tree"), ["ack"]),
        (PermanentError("ReturnTree failed"), []),
        (TemporaryError("away"), []),
        (Refused("another has it", "STALE_EPOCH"), []),
        (Refused("it is over", "NOT_GROWING"), ["ack"]),
    ],
)
async def test_a_tree_that_cannot_be_handed_back_ends_no_node(
    error: BanyanError, said: list[str]
) -> None:
    class Refuses(Store):
        async def give_back(self, *args: object) -> None:
            raise error

    trees, live = Trees(8, 8), _live()
    trees.put(live)
    await TreeCompleter(Refuses(), Publisher(Bus()), trees, "r", "n").give_back(
        live, "the node ends"
    )  # type: ignore[arg-type]
    assert len(trees) == 0 and live.delivery.said == said  # type: ignore[attr-defined]


async def test_a_tree_that_progresses_is_kept_while_the_store_is_away() -> None:
    """Else the broker gives it to another node, which cannot claim it either."""
    trees, lives = Trees(8, 8), [_live(), _live()]
    lives[1].spec = SimpleNamespace(tree_id=b"u" * 32, width=1)  # type: ignore[assignment]
    for live in lives:
        trees.put(live)
    lives[1].touched -= 1000

    async def stats() -> Any:
        return SimpleNamespace(steps=0)

    async def drop(*args: object) -> None:
        raise AssertionError("nothing is dropped")

    keeper = LeaseRenewer(Store(), SimpleNamespace(stats=stats), trees, drop, 120.0)  # type: ignore[arg-type]
    await keeper.once()
    assert [live.delivery.said for live in lives] == [["in_progress"], []]  # type: ignore[attr-defined]


@pytest.mark.parametrize("steps", [1, 0])
async def test_a_tree_is_kept_while_the_engine_computes_though_no_segment_of_it_ends(
    steps: int,
) -> None:
    """vLLM counts a segment's tokens when it ends, which may take longer than the deadline."""
    trees, live, taken = Trees(8, 8), _live(), 0
    live.started, live.grower = True, SimpleNamespace(in_flight={"branch": 1})  # type: ignore[assignment]
    trees.put(live)

    async def stats() -> Any:
        nonlocal taken
        taken += steps
        return SimpleNamespace(steps=taken, sampled_tokens=0)

    async def drop(*args: object) -> None:
        raise AssertionError("nothing is dropped")

    keeper = LeaseRenewer(Store(), SimpleNamespace(stats=stats), trees, drop, 120.0)  # type: ignore[arg-type]
    for _ in range(3):
        live.touched -= 1000
        await keeper.once()
    assert live.delivery.said == ["in_progress"] * 3 * steps  # type: ignore[attr-defined]
