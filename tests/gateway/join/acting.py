"""A joined node that acts, by hand: it publishes what it likes, and asks for what it likes."""

import sqlite3
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from banyan.environments.endings import Ending
from banyan.environments.receipts import Receipt
from banyan.recipe import Recipe
from banyan.recipe_loader import load
from banyan.segment import Finish, IntTokens, Kind, Sampling, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1 import verifier_service_pb2 as verifier
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from banyan.v1.verifier_service_pb2_grpc import VerifierServiceStub
from banyan.wire import endings, receipts
from banyan.wire.generate_spec import GenerateSpec
from banyan.wire.segments import leaf_to_wire, segment_to_wire
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.gateway.join import client
from tests.faults.harness import tiny_model
from tests.gateway.live_site import Site, node_channel
from tests.system.tiny import byte_tokenizer

POLICY = bytes([1]) * 32  # what `Site.publish_policy` publishes first


def recipe(folder: Path) -> Recipe:
    """Return a run whose paths act with a calculator; nothing samples it by itself."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "say {n}", "answer": "{n}"}}\n' for n in range(9)))
    byte_tokenizer(tiny_model(folder / "model", vocab=257))
    return load.resolve(
        {
            "name": "acting",
            "model": str(folder / "model"),
            "task": {"name": "file", "path": str(rows), "reward": "number", "holdout": 0.0},
            "generate": {
                "policy": "turns",
                "settings": {"starts": 2, "branches": 2, "depth": 1},
                "max_new_tokens": 64,
            },
            "environment": {"name": "calculator", "turns": 2},
            "filter": [{"name": "environment"}],
            "control": {"groups_per_batch": 4},
            "budget": {"steps": 3},
            "eval": {"samples": 0},
            "resources": {"engine": "torch"},
        }
    )


@dataclass
class Node:
    """A joined node, with its ways to the store, the verifier and the broker."""

    name: str
    run_id: str
    env: Mapping[str, str]
    trees: Any
    environments: Any
    bus: Bus
    tokenizer: Tokenizer

    async def claim(self, tree_id: bytes, ticket: int = 1) -> lineage.ClaimTreeResponse:
        request = lineage.ClaimTreeRequest(tree_id=tree_id, node_id=self.name, ticket=ticket)
        answer: lineage.ClaimTreeResponse = await rpc.call(self.trees.ClaimTree, request)
        return answer

    async def act(
        self, tree_id: bytes, action: bytes, epoch: int = 1, call: str = "", wait_s: float = 10.0
    ) -> tuple[Receipt, str]:
        request = verifier.ActRequest(
            tree_id=tree_id,
            epoch=epoch,
            action=action,
            call=call,
            deadline_ms=int(1000 * wait_s),
        )
        answer = await rpc.call(self.environments.Act, request, wait_s + 20.0)
        assert not answer.HasField("ending")
        return receipts.from_wire(answer.receipt), answer.text

    async def publish(self, *segments: Segment, epoch: int = 1) -> None:
        grown = [
            events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=epoch) for s in segments
        ]
        message = events_pb2.SegmentsGrown(run_id=self.run_id, node_id=self.name, segments=grown)
        await self._tell("segment", message)

    async def finish(self, segment: Segment, ending: Ending | None = None, epoch: int = 1) -> None:
        leaf = events_pb2.LeafFinished(
            run_id=self.run_id,
            tree_id=segment.tree_id,
            claim_epoch=epoch,
            leaf=leaf_to_wire(Leaf(segment.id, len(segment))),
            ending=endings.to_wire(ending) if ending else None,
        )
        await self._tell("leaf", events_pb2.LeavesFinished(leaves=[leaf]))

    async def _tell(self, kind: str, message: Any) -> None:
        await self.bus.publish(subjects.lineage(self.run_id, kind), message, uuid.uuid4().hex)

    def tokens(self, text: str) -> IntTokens:
        return np.array(self.tokenizer.encode(text).ids, np.int32)

    def root(self, spec: tree_pb2.TreeSpec, prompt: str) -> Segment:
        tokens = self.tokens(f"{prompt}\n")
        return Segment(spec.tree_id, b"", 0, 0, Kind.PROMPT, tokens, text=prompt)

    def said(
        self,
        spec: tree_pb2.TreeSpec,
        parent: Segment,
        text: str,
        finish: Finish = Finish.TOOL_CALL,
        ordinal: int = 0,
    ) -> Segment:
        """Return a segment of the policy, as the spec asks for it."""
        tokens = self.tokens(text)
        sampling = GenerateSpec.from_json(spec.generate_json).sampling(spec.seed)
        return Segment(
            spec.tree_id,
            parent.id,
            len(parent),
            ordinal,
            Kind.POLICY,
            tokens,
            logprobs_T=-np.ones(len(tokens), np.float32),
            policy=POLICY,
            policy_epoch=1,
            sampling=Sampling(max_new_tokens=sampling.max_new_tokens, seed=sampling.seed),
            finish=finish,
            text=text,
        )

    def answer(self, action: Segment, receipt: Receipt, text: str, **lies: Any) -> Segment:
        """Return an answer as its renderer writes it, but for the lies."""
        fields: dict[str, Any] = {
            "tokens_T": self.tokens(f"\n{text}\n"),
            "receipt": receipt,
            "text": text,
            "finish": Finish.BOUNDARY,
        }
        return Segment(
            action.tree_id, action.id, len(action), 0, kind=Kind.TOOL, **{**fields, **lies}
        )


@asynccontextmanager
async def node(site: Site, run_id: str, name: str, folder: Path) -> AsyncIterator[Node]:
    """Join a run."""
    env = await client.admit(site.running.join_address, await site.token(run_id), folder, name)
    bus = await Bus.connect(
        env["BANYAN_NATS"],
        name,
        creds=env["BANYAN_NATS_CREDS"],
        inbox_prefix=env["BANYAN_NATS_INBOX"],
        tls_root=Path(env["BANYAN_NATS_TLS_ROOT"]),
        tls_name=env["BANYAN_NATS_TLS_NAME"],
    )
    try:
        async with node_channel(env) as opened:
            yield Node(
                name=name,
                run_id=run_id,
                env=env,
                trees=TreeStoreServiceStub(opened),
                environments=VerifierServiceStub(opened),
                bus=bus,
                tokenizer=Tokenizer.from_file(str(site.state / "model" / "tokenizer.json")),
            )
    finally:
        await bus.close()


def rows(site: Site, query: str) -> list[Any]:
    """Return rows of the site's store, read beside it."""
    with sqlite3.connect(f"file:{site.state / 'store.sqlite'}?mode=ro", uri=True) as db:
        return db.execute(query).fetchall()
