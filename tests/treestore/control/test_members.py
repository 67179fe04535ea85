"""Members: presence, leaving, and the owner of a name."""

import pytest

from banyan.errors import InvalidInput, Refused
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import members
from tests.treestore.forge import World


def _put(
    world: World, node: str, key: str = "", leaving: bool = False, joined: bool = False
) -> None:
    member = rs.Member(node_id=node, run_id=world.forge.run_id, joined=joined, public_key=key)
    request = rs.PutMemberRequest(member=member, leaving=leaving)
    world.database.transact(lambda c: members.put(c, request, world.now()))


def _present(world: World) -> dict[str, bool]:
    listed = world.database.query(
        lambda c: members.read(c, world.forge.run_id, world.now())
    ).members
    return {m.node_id: m.present for m in listed}


def test_a_silent_member_counts_no_more_until_it_is_heard_of(world: World) -> None:
    _put(world, "a")
    _put(world, "b")
    assert _present(world) == {"a": True, "b": True}
    world.now.ms += members.PRESENT_MS - 1
    _put(world, "b")
    assert _present(world) == {"a": True, "b": True}
    world.now.ms += 1
    assert _present(world) == {"a": False, "b": True}
    _put(world, "a")
    assert _present(world) == {"a": True, "b": True}


def test_a_member_that_leaves_counts_no_more_at_once(world: World) -> None:
    _put(world, "a", "KEY")
    _put(world, "a", leaving=True)
    assert _present(world) == {"a": False}
    _put(world, "a", "KEY")
    assert _present(world) == {"a": True}


def test_a_name_belongs_to_the_key_that_came_first(world: World) -> None:
    _put(world, "a", "KEY", joined=True)
    _put(world, "a")  # a report without the key
    _put(world, "rollout-0")
    for name in (
        "a",
        "rollout-0",
    ):  # a launched node has no key, and no other may join under its name
        with pytest.raises(Refused) as refused:
            _put(world, name, "OTHER", joined=True)
        assert refused.value.reason == "NODE_TAKEN"
    listed = world.database.query(
        lambda c: members.read(c, world.forge.run_id, world.now())
    ).members
    assert [m.public_key for m in listed] == ["KEY", ""]


def test_a_killed_node_is_missed_within_ten_seconds_and_one_that_lives_may_lose_a_word_or_two() -> (
    None
):
    from services.rollout.node import heartbeat

    assert members.PRESENT_MS <= 10_000
    assert 4 * heartbeat.EVERY_S * 1000 <= members.PRESENT_MS


@pytest.mark.parametrize("node", ["", "n" * 65, "n" * 100_000, "a b", "a\n", "ä"])
def test_a_name_that_is_none_is_not_kept(world: World, node: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 64 letters") as refused:
        _put(world, node)
    assert len(str(refused.value)) < 200 and _present(world) == {}


def test_a_host_that_is_none_is_not_kept(world: World) -> None:
    member = rs.Member(node_id="a", run_id=world.forge.run_id, host="h" * 256)
    with pytest.raises(InvalidInput, match="at most 255"):
        world.database.transact(
            lambda c: members.put(c, rs.PutMemberRequest(member=member), world.now())
        )


def test_a_member_is_told_by_the_trees_that_it_grew_once_each(world: World) -> None:
    """Trees are counted when their ends come, however often these are repeated."""
    for ordinal in range(3):
        spec = world.forge.spec(ordinal)
        epoch = world.open(spec)
        for _ in range(2):
            world.ingest(*world.forge.life(spec, epoch=epoch))
    _put(world, "node-1")
    _put(world, "idle")
    listed = world.database.query(
        lambda c: members.read(c, world.forge.run_id, world.now())
    ).members
    assert {m.node_id: m.trees for m in listed} == {"node-1": 3, "idle": 0}


def _read(world: World) -> dict[str, rs.Member]:
    answer = world.database.query(lambda c: members.read(c, world.forge.run_id, world.now()))
    return {member.node_id: member for member in answer.members}


def test_a_member_is_told_by_the_policy_that_it_has_loaded(world: World) -> None:
    for step in (None, 0, 7):
        member = rs.Member(node_id="a", run_id=world.forge.run_id, policy_step=step)
        request = rs.PutMemberRequest(member=member)
        world.database.transact(lambda c, r=request: members.put(c, r, world.now()))
        found = _read(world)["a"]
        assert found.HasField("policy_step") == (step is not None)
        assert found.policy_step == (step or 0)


def test_a_member_is_told_by_what_it_delivered_last(world: World) -> None:
    """A sampled segment and the end of a tree count; a claim, a prompt and a repetition do not."""
    _put(world, "node-1")
    _put(world, "idle")
    spec = world.forge.spec(0)
    epoch = world.open(spec)
    prompt, sampled, more, *ends = world.forge.life(spec, epoch=epoch)
    times = []
    for messages in ([prompt], [sampled], [sampled], [more], ends[:-2], ends, [prompt, sampled]):
        world.now.ms += 1000
        world.ingest(*messages)
        delivered = _read(world)["node-1"].delivered_unix_ms
        times.append(0 if not delivered else (world.now.ms - delivered) // 1000)
        if messages == [prompt]:
            assert not delivered
    assert times == [0, 0, 1, 0, 0, 1, 2]
    found = _read(world)
    assert found["node-1"].trees == 1 and found["idle"].delivered_unix_ms == 0


def test_what_its_engine_has_decoded_is_that_of_its_last_report(world: World) -> None:
    def report(**counts: int) -> list[tuple[int, int]]:
        member = rs.Member(node_id="a", run_id=world.forge.run_id, **counts)
        request = rs.PutMemberRequest(member=member)
        world.database.transact(lambda c: members.put(c, request, world.now()))
        answer = world.database.query(lambda c: members.read(c, world.forge.run_id, world.now()))
        return [(m.decoded, m.decode_slots) for m in answer.members]

    assert report(decoded=25, decode_slots=2**63 - 1) == [(25, 2**63 - 1)]
    with pytest.raises(InvalidInput, match="at most 9223372036854775807 are counted"):
        report(decoded=2**63)
    assert report() == [(0, 0)], "it was started again"
