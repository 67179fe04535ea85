"""Environments answer joined nodes through the gateway: their own claims, and no lie."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.environments import receipts
from banyan.environments.endings import Ending
from banyan.environments.receipts import Receipt
from banyan.errors import BanyanError, Refused, TemporaryError
from banyan.segment import Finish, Kind, Segment
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1 import verifier_service_pb2 as verifier
from banyan.v1.verifier_service_pb2_grpc import VerifierServiceStub
from services.chassis.rpc import rpc
from services.gateway.join import slots
from services.treestore.storage.settings import Settings as StoreSettings
from tests.gateway.join import acting
from tests.gateway.join.acting import Node, rows
from tests.gateway.live_site import Site, node_channel, site


@dataclass
class Stage:
    """A site with a node that holds a tree whose path has come to an action."""

    site: Site
    node: Node
    spec: tree_pb2.TreeSpec
    root: Segment
    action: Segment
    folder: Path

    async def refused(self, eventually: Any, number: int = 1) -> list[str]:
        """Wait for so many refused events; return their reasons."""

        def reasons() -> list[str]:
            return [r for (r,) in rows(self.site, "select reason from refused order by n")]

        await eventually(lambda: len(reasons()) >= number, 20.0, f"{number} refused events")
        return reasons()

    async def stored(self, eventually: Any, segment: Segment) -> None:
        query = f"select 1 from segments where id = x'{segment.id.hex()}'"
        await eventually(lambda: bool(rows(self.site, query)), 20.0, "a stored segment")


@pytest.fixture
async def stage(tmp_path: Path, eventually: Any) -> AsyncIterator[Stage]:
    made = acting.recipe(tmp_path)
    async with site(tmp_path) as here:
        run_id = (await here.create(made)).run_id
        await here.publish_policy(run_id, 0)

        async def opened() -> bool:
            return (await here.progress(run_id)).groups.opened > 0

        await eventually(opened)
        ask = lineage.ListTreesRequest(filter=lineage.TreeFilter(run_id=run_id))
        tree_id = (await rpc.call(here.trees.ListTrees, ask)).trees[0].tree_id
        async with acting.node(here, run_id, "n-1", tmp_path / "n-1") as node:
            claim = await node.claim(tree_id)
            spec = claim.tree.spec
            assert claim.epoch == 1 and not spec.row_json, "rows stay at the site"
            (message,) = json.loads(spec.messages_json)
            root = node.root(spec, message["content"])
            action = node.said(spec, root, "<calc>6*7</calc>")
            made_stage = Stage(here, node, spec, root, action, tmp_path)
            await node.publish(root, action)
            await made_stage.stored(eventually, action)
            yield made_stage


async def test_a_joined_node_has_its_actions_answered(stage: Stage, eventually: Any) -> None:
    """Whatever it says of the text: the store reads the action from its tokens."""
    node, action = stage.node, stage.action
    receipt, text = await node.act(action.tree_id, action.id, call="<calc>1+1</calc>")
    assert text == "42" and receipt.call == "<calc>6*7</calc>"
    tool = node.answer(action, replace(receipt, call="<calc>the dog ate it</calc>"), text)
    await node.publish(tool)
    await stage.stored(eventually, tool)
    stored = rows(stage.site, "select receipt from segments where kind = 3")
    assert [tree_pb2.Receipt.FromString(r).call for (r,) in stored] == ["<calc>6*7</calc>"]
    assert await node.act(action.tree_id, action.id) == (receipt, text), "again, from the store"
    assert not rows(stage.site, "select * from refused")


async def test_no_node_touches_what_another_one_holds(stage: Stage) -> None:
    action = stage.action
    async with acting.node(stage.site, stage.node.run_id, "n-2", stage.folder / "n-2") as other:
        first, second = await asyncio.gather(
            stage.node.act(action.tree_id, action.id),
            other.act(action.tree_id, action.id),
            return_exceptions=True,
        )
        assert not isinstance(first, BaseException) and first[1] == "42"
        assert isinstance(second, Refused) and second.reason == "NOT_ITS_CLAIM", second
        assert "node n-2 holds no claim" in str(second)
        with pytest.raises(Refused) as refused:
            await other.act(action.tree_id, action.id)
        assert refused.value.reason == "NOT_ITS_CLAIM", "nor once it has been answered"
    with pytest.raises(Refused) as refused:
        await stage.node.act(action.tree_id, action.id, epoch=2)
    assert refused.value.reason == "STALE_EPOCH"
    back = lineage.ReturnTreeRequest(tree_id=action.tree_id, epoch=1, reason="drain")
    await rpc.call(stage.node.trees.ReturnTree, back)
    assert (await stage.node.claim(action.tree_id, ticket=2)).epoch == 2
    with pytest.raises(Refused) as refused:
        await stage.node.act(action.tree_id, action.id, epoch=1)
    assert refused.value.reason == "STALE_EPOCH"


async def test_a_node_of_another_run_is_none_of_this_one(stage: Stage) -> None:
    other = (await stage.site.create(acting.recipe(stage.folder))).run_id
    async with acting.node(stage.site, other, "n-1", stage.folder / "n-3") as foreign:
        with pytest.raises(Refused, match=f"does not belong to run {other}") as refused:
            await foreign.act(stage.action.tree_id, stage.action.id)
    assert refused.value.reason == "OTHER_RUN"
    env = {**stage.node.env, "BANYAN_STORE_TOKEN": "wrong"}
    async with node_channel(env) as stranger:
        request = verifier.ActRequest(tree_id=stage.action.tree_id, epoch=1)
        with pytest.raises(Refused) as refused:
            await rpc.call(VerifierServiceStub(stranger).Act, request)
    assert refused.value.reason == "UNAUTHENTICATED"


async def test_of_the_verifier_a_node_gets_answers_alone(stage: Stage) -> None:
    stub = stage.node.environments
    with pytest.raises(Refused) as refused:
        await rpc.call(stub.ListScorers, verifier.ListScorersRequest())
    assert refused.value.reason == "PERMISSION_DENIED"
    with pytest.raises(Refused, match="ends no action"):
        await stage.node.act(stage.root.tree_id, stage.root.id)


async def test_a_flood_of_one_node_is_its_own(stage: Stage, eventually: Any) -> None:
    """Asked for actions that are not there, its calls wait; one more is told to wait by itself."""
    node, tree_id = stage.node, stage.action.tree_id
    missing = [bytes([n]) * 32 for n in range(slots.ACTIONS)]

    async def insist(key: bytes) -> None:
        while True:  # one that found no place, because of the one below, takes the next
            with contextlib.suppress(TemporaryError):
                await node.act(tree_id, key, wait_s=30.0)

    flood = [asyncio.create_task(insist(key)) for key in missing]

    async def full() -> bool:
        try:
            await node.act(tree_id, b"one more" * 4, wait_s=0.1)
        except TemporaryError as error:
            return error.reason == "TOO_MANY"
        return False

    await eventually(full, 20.0, "a node with as many actions as it may have")
    async with acting.node(stage.site, node.run_id, "n-2", stage.folder / "n-2") as other:
        with pytest.raises(Refused) as refused:
            await other.act(tree_id, stage.action.id)
        assert refused.value.reason == "NOT_ITS_CLAIM", "others are answered, if only so"
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)

    async def answered() -> bool:
        with contextlib.suppress(TemporaryError):
            return (await node.act(tree_id, stage.action.id))[1] == "42"
        return False

    await eventually(answered, 20.0, "an answer after the flood")


def forged(stage: Stage, receipt: Receipt, text: str) -> dict[str, tuple[str, Segment]]:
    """Return false answers with the reasons for which they are refused."""
    node, action = stage.node, stage.action
    other = node.said(stage.spec, stage.root, "<calc>6*8</calc>", ordinal=1)
    theirs = replace(receipt.observation, action=action.id, reward=1.0)
    mac = receipts.mac(receipts.key_of("theirs"), node.run_id, action.tree_id, theirs)
    first = np.array([7], np.int32)
    return {
        "forged": ("RECEIPT_FALSE", node.answer(action, Receipt(theirs, mac), text)),
        "another text": ("RECEIPT_FALSE", node.answer(action, receipt, "43")),
        "of another path": ("RECEIPT_FALSE", node.answer(other, receipt, text)),
        "other tokens": (
            "ANSWER_TOKENS_FALSE",
            node.answer(action, receipt, text, tokens_T=node.tokens("\n43\n")),
        ),
        "no tokens of it": (
            "ANSWER_TOKENS_FALSE",
            node.answer(action, receipt, text, tokens_T=first),
        ),
        "ends": ("ANSWER_END_FALSE", node.answer(action, receipt, text, finish=Finish.STOP)),
        "of the policy": (
            "ANSWER_NOT_THEIRS",
            node.said(stage.spec, action, text, Finish.STOP),
        ),
    }


async def test_nothing_false_counts(stage: Stage, eventually: Any) -> None:
    node, action = stage.node, stage.action
    receipt, text = await node.act(action.tree_id, action.id)
    lies = forged(stage, receipt, text)
    other = node.said(stage.spec, stage.root, "<calc>6*8</calc>", ordinal=1)
    await node.publish(other)
    await stage.stored(eventually, other)
    for number, (reason, lie) in enumerate(lies.values()):
        await node.publish(lie)
        assert (await stage.refused(eventually, number + 1))[-1] == reason
    assert not rows(stage.site, f"select * from segments where kind = {int(Kind.TOOL)}")
    fake = Ending(action.id, "INFRASTRUCTURE", "", b"x" * 32)
    key = receipts.key_of("theirs")
    theirs = Ending.said(
        key, node.run_id, action.tree_id, place=other.id, reason="DEADLINE", cause=""
    )
    for ending, at in ((fake, action), (theirs, other)):
        await node.finish(at, ending)
    reasons = await stage.refused(eventually, len(lies) + 2)
    assert reasons[len(lies) :] == ["ENDING_FALSE"] * 2
    assert not rows(stage.site, "select * from leaves") and not rows(
        stage.site, "select * from scores"
    )
    tool = node.answer(action, receipt, text)
    await node.publish(tool)
    await stage.stored(eventually, tool)
    assert StoreSettings().receipt_key == receipts.key_of(""), "the site's key is none of theirs"


async def test_a_tree_that_goes_to_another_node_is_answered_alike(stage: Stage) -> None:
    node, action = stage.node, stage.action
    first = await node.act(action.tree_id, action.id)
    back = lineage.ReturnTreeRequest(tree_id=action.tree_id, epoch=1, reason="drain")
    await rpc.call(node.trees.ReturnTree, back)
    with pytest.raises(BanyanError):
        await node.act(action.tree_id, action.id)
    async with acting.node(stage.site, node.run_id, "n-2", stage.folder / "n-2") as other:
        assert (await other.claim(action.tree_id, ticket=2)).epoch == 2
        assert await other.act(action.tree_id, action.id, epoch=2) == first
