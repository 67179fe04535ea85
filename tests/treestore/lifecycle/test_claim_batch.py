"""Claims of many trees in one call, and looks whether many are stored."""

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claim_batch, waits
from services.treestore.loops import deadlines
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import GROWING
from tests.treestore.forge import World
from tests.treestore.work import statements


def _claim_all(world: World, tickets: dict[bytes, int]) -> list[ts.ClaimOutcome]:
    request = ts.ClaimTreesRequest(
        claims=[
            ts.ClaimTreeRequest(tree_id=tree_id, node_id="node-1", ticket=ticket, traceparent="t")
            for tree_id, ticket in tickets.items()
        ]
    )
    answer = world.database.transact(
        lambda c: claim_batch.claim_many(c, request, "", world.now(), world.settings)
    )
    return list(answer.outcomes)


def test_claims_of_many_trees_are_read_and_written_together(world: World) -> None:
    specs = [world.forge.spec(ordinal) for ordinal in range(8)]
    world.ingest(*map(world.forge.opened, specs))
    counts = []
    for number in (1, 7):
        tickets = {spec.tree_id: 1 for spec in specs[:number]}
        specs = specs[number:]
        with statements() as made:
            outcomes = _claim_all(world, tickets)
        counts.append(len(made))
        assert [outcome.claim.epoch for outcome in outcomes] == [1] * number
        assert {outcome.claim.first_traceparent for outcome in outcomes} == {"t"}
    assert counts[0] == counts[1]


def test_ingestion_of_many_trees_is_read_in_as_many_statements_as_of_one(world: World) -> None:
    specs = [world.forge.spec(ordinal) for ordinal in range(6)]
    roots = {spec.tree_id: world.forge.root(spec) for spec in specs}
    request = ts.AwaitTreesIngestedRequest()
    for spec in specs:
        epoch = world.open(spec)
        world.ingest(world.forge.segments(roots[spec.tree_id], epoch=epoch))
        request.trees.add(tree_id=spec.tree_id, epoch=1, segment_ids=[roots[spec.tree_id].id])
    # The segment of another tree is not one of this.
    request.trees.add(tree_id=specs[0].tree_id, epoch=1, segment_ids=[roots[specs[1].tree_id].id])
    request.trees.add(tree_id=b"x" * 32, epoch=1)
    none = ts.AwaitTreesIngestedResponse()
    with statements() as made:
        answer = world.database.query(lambda c: waits.ingested_trees(c, request, "", none))
    missing = [list(outcome.answer.missing) for outcome in answer.outcomes]
    assert missing == [[]] * 6 + [[roots[specs[1].tree_id].id], []]
    assert [outcome.refused for outcome in answer.outcomes] == [""] * 7 + ["NOT_FOUND"]
    selects = [statement for statement in made if statement.startswith("SELECT")]
    assert len(selects) == 3, "trees, segments, and what was refused of the tree that lacks one"


def test_a_claim_too_many_among_others_drops_its_tree_and_leaves_theirs_in_force(
    world: World,
) -> None:
    before, dropped, behind = (world.forge.spec(0, n, size=3, max_claims=1) for n in range(3))
    for spec in (before, dropped, behind):
        world.ingest(world.forge.opened(spec))
    world.claim(dropped.tree_id)
    world.now.ms += world.settings.claim_ms + world.settings.requeue_ms + 1
    world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))
    rows = {row.tree_id: row for row in world.rows(schema.trees)}
    tickets = {s.tree_id: rows[s.tree_id].ticket for s in (before, dropped, behind)}
    assert [outcome.claim.epoch for outcome in _claim_all(world, tickets)] == [1, 0, 1]
    rows = {row.tree_id: row for row in world.rows(schema.trees)}
    assert rows[dropped.tree_id].reason == "NO_PROGRESS"
    for spec in (before, behind):
        row = rows[spec.tree_id]
        assert (row.state, row.claim_epoch, row.claim_node) == (GROWING, 1, "node-1")
