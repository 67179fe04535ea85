"""Documents of the API over a real store: pages, nodes, advantages, segments, hostile texts."""

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from banyan.recipe import Recipe
from banyan.segment import Finish, Kind, Origin
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.node_advantages import node_advantages, view_of
from banyan.wire.segments import leaf_to_wire
from services.chassis.rpc import rpc
from services.gateway.page.documents import system, why
from services.gateway.page.documents.token_texts import MISSING, TokenTexts
from tests.gateway.page.made_trees import HOSTILE, closed, grow


async def paged(here: Any, path: str, name: str) -> list[Any]:
    """Return all pages of a list."""
    found, after = [], ""
    while True:
        page = await here.get(f"{path}{'&' if '?' in path else '?'}limit=3{after}")
        assert len(page[name]) <= 3
        found += page[name]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


async def test_pages_of_trees_are_whole_and_ordered_while_trees_come(here: Any) -> None:
    forge, run = here.store.forge, here.store.forge.run_id
    specs = [forge.spec(number) for number in range(8)]
    await here.store.publish(forge.all_opened(specs))
    await here.store.claim(specs[-1].tree_id)
    first = await here.get(f"/api/runs/{run}/trees?limit=3")
    await here.store.publish(forge.opened(forge.spec(8)))
    await here.store.claim(forge.spec(8).tree_id)
    rest = await here.get(f"/api/runs/{run}/trees?limit=500&after={first['next']}")
    ids = [tree["tree_id"] for tree in first["trees"] + rest["trees"]]
    assert ids == [spec.tree_id.hex() for spec in reversed(specs)]
    assert len(await paged(here, f"/api/runs/{run}/trees", "trees")) == 9
    assert (await here.get(f"/api/runs/{run}/trees?limit=9"))["next"] is None


async def test_trees_are_chosen_by_what_they_are(here: Any) -> None:
    forge, run = here.store.forge, here.store.forge.run_id
    await here.store.grow(forge.spec(0))
    specs = [forge.spec(1), forge.spec(0, label="before-greedy")]
    await here.store.publish(forge.all_opened(specs))
    await here.store.claim(specs[-1].tree_id)

    async def rows(query: str) -> list[str]:
        found = await here.get(f"/api/runs/{run}/trees?{query}")
        return sorted(tree["tree_id"][:8] for tree in found["trees"])

    trained, growing, measured = (s.tree_id.hex()[:8] for s in (forge.spec(0), *specs))
    assert await rows("") == sorted([trained, growing])
    assert await rows("purpose=eval") == [measured] == await rows("label=before-greedy")
    assert await rows("purpose=all") == sorted([trained, growing, measured])
    assert await rows("state=CLOSED") == [trained]
    assert await rows(f"row={forge.spec(1).row_digest.hex()}") == [growing]
    assert await rows(f"group={forge.spec(1).group_id}") == [growing]
    assert await rows("policy_step=7") == []
    assert await rows("step=1") == []
    commit = ts.CommitBatchRequest(
        run_id=run,
        ordinal=0,
        learner_epoch=1,
        use="train",
        group_ids=[forge.spec(0).group_id],
        summary_json="{}",
    )
    await rpc.call(here.store.trees.CommitBatch, commit)
    assert await rows("step=1") == [trained] == await rows("step=1&state=CONSUMED")
    assert await rows("step=2") == []
    wrong = ("state=closed", "purpose=TRAIN", "row=ab", "step=0", "policy_step=-1", "limit=501")
    for query in (*wrong, "x=1"):
        refusal = await here.get(f"/api/runs/{run}/trees?{query}", 400)
        assert query.split("=")[0] in refusal["error"]["message"]


async def test_pages_of_runs(here: Any) -> None:
    for number in range(7):
        run = here.store.forge.run()
        run.run_id = f"other-{number}"
        put = rs.PutRunRequest(run=run, request_id=run.run_id, gateway_epoch=1)
        await rpc.call(here.store.runs.PutRun, put)
    found = await paged(here, "/api/runs", "runs")
    whole = (await here.get("/api/runs?limit=500"))["runs"]
    assert [run["run_id"] for run in found] == [run["run_id"] for run in whole]
    assert len({run["run_id"] for run in found}) == 8
    assert (await here.get("/api/runs?limit=8"))["next"] is None
    (mine,) = [run for run in found if run["run_id"] == here.store.forge.run_id]
    assert (mine["state"], mine["steps"], mine["policy"], mine["advantage"]) == (
        "TRAINING",
        10,
        "treepo",
        "grpo",
    )
    assert mine["live"] and mine["task"] == "arithmetic" and mine["name"] == "page"


async def test_advantages_are_those_of_the_estimator_on_the_whole_group(here: Any) -> None:
    forge = here.store.forge
    specs = [forge.spec(0, index=index, size=2) for index in range(2)]
    for spec, widths in zip(specs, [(2, 2), (3, 1)], strict=True):
        await grow(here.store, spec, widths)
    document = await here.get(f"/api/trees/{specs[0].tree_id.hex()}")
    assert document["group"] == [spec.tree_id.hex() for spec in specs]
    assert document["advantage_note"] is None
    stored = [
        (await rpc.call(here.store.trees.GetTree, ts.GetTreeRequest(tree_id=s.tree_id))).tree
        for s in specs
    ]
    run = await here.get(f"/api/runs/{forge.run_id}")
    expected = node_advantages(
        stored[0], Recipe.model_validate_json(json.dumps(run["recipe"]), strict=False), stored
    )
    view = view_of(stored[0])
    by_place = {
        (n.segment.id.hex(), n.start, n.stop): expected[n.index]
        for n in view.nodes
        if n.trained and n.index in expected
    }
    found = {
        (n["segment"], n["start"], n["stop"]): n["advantage"]
        for n in document["nodes"]
        if n["advantage"] is not None
    }
    assert found == pytest.approx(by_place) and len(found) == 6
    steps = [n["policy_step"] for n in document["nodes"]]
    assert steps == [None] + [0] * 6, "no policy made the prompt"
    reasons = [n["why"] for n in document["nodes"]]
    assert reasons[0] is None
    assert all(why.startswith("one of 2 continuations after token ") for why in reasons[1:])
    values = [n["value"] for n in document["nodes"]]
    assert values == pytest.approx([n.value for n in view.nodes])
    assert document["nodes"][1]["entropy"] == 0.5 and document["nodes"][1]["logprob"] == -1.0


async def test_an_estimator_that_cannot_is_said_and_the_tree_is_shown(here: Any) -> None:
    forge = here.store.forge
    run = forge.run()
    recipe = json.loads(run.recipe_json)
    recipe["optimise"]["advantage"] = "no_such_module:Thing"
    run.recipe_json, run.run_id = json.dumps(recipe), "broken-1"
    put = rs.PutRunRequest(run=run, request_id="broken", gateway_epoch=1)
    await rpc.call(here.store.runs.PutRun, put)
    forge.run_id = "broken-1"
    await grow(here.store, forge.spec(), (2, 2))
    document = await here.get(f"/api/trees/{forge.spec().tree_id.hex()}")
    assert document["advantage_note"].startswith("no advantages: ")
    assert "no_such_module" in document["advantage_note"]
    assert len(document["nodes"]) == 7 and not any(n["advantage"] for n in document["nodes"])


async def test_hostile_texts_are_data(here: Any) -> None:
    forge = here.store.forge
    spec = forge.spec(messages_json=json.dumps([{"role": HOSTILE, "content": [HOSTILE, "\ud800"]}]))
    await grow(here.store, spec, (2,), text=HOSTILE)
    answer = await here.client.get(f"/api/trees/{spec.tree_id.hex()}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.content.isascii()
    document = answer.json()
    assert document["nodes"][1]["text"] == f"{HOSTILE} 0.0 "
    assert document["messages"][0]["role"] == HOSTILE
    assert json.loads(document["messages"][0]["content"]) == [HOSTILE, "\ud800"]


async def test_a_segment_has_its_tokens_scores_use_and_commands(here: Any) -> None:
    forge = here.store.forge
    spec = forge.spec(traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    leaves = await grow(here.store, spec, (2, 2))
    place = f"/api/trees/{spec.tree_id.hex()}/segments/{leaves[1].id.hex()}"
    segment = await here.get(place)
    assert segment["segment"] == leaves[1].id.hex() and segment["kind"] == "POLICY"
    assert [token["id"] for token in segment["tokens"]] == leaves[1].tokens_T.tolist()
    assert segment["tokens"][0] == {
        "id": leaves[1].tokens_T[0],
        "text": None,
        "logprob": -1.0,
        "sampled_logprob": None,
        "entropy": 0.5,
    }
    assert segment["token_texts"] == MISSING and segment["text"].startswith("text 1.1")
    (score,) = segment["scores"]
    assert (score["scorer"], score["value"], score["end"]) == ("number", 1.0, 8)
    assert segment["trace_id"] == "ab" * 16 and segment["lineage"] == []
    assert segment["commands"]["lineage"] == f"banyan lineage {leaves[1].id.hex()[:16]}"
    assert (await here.get(place[:-48]))["segment"] == segment["segment"]  # a unique beginning
    other = forge.spec(1)
    await grow(here.store, other, (2,))
    await here.get(place.replace(spec.tree_id.hex(), other.tree_id.hex()), 404)


async def test_dead_letters_have_pages_without_their_messages(here: Any) -> None:
    for number in range(5):
        letter = events_pb2.DeadLetter(
            stream="LINEAGE",
            sequence=number + 1,
            subject="lineage.r.segment",
            reason=HOSTILE,
            payload=b"secret row",
            service="treestore",
        )
        await here.store.bus.publish("dead.LINEAGE", letter, f"dead-{number}")
    for _ in range(200):
        found = await paged(here, "/api/dead", "letters")
        if len(found) == 5:
            break
    assert [d["id"] for d in found] == sorted((d["id"] for d in found), reverse=True)
    assert len(found) == 5 and found[0]["bytes"] == 10 and found[0]["reason"] == HOSTILE
    assert "secret row" not in json.dumps(found)
    state = await here.get("/api/system")
    assert state["queues"] == [] and state["missing"] == []


def test_processes_are_believed_only_about_what_they_were() -> None:
    rows = [
        {"service": "learner", "pid": 1, "state": "ready", "run": "r", "name": "learner-r-0"},
        {"service": "gateway", "pid": 2, "state": "starting", "run": "", "since": 1.5},
        {"service": "rollout", "pid": 3, "state": "waiting", "run": "r", "restarts": 2},
        "nonsense",
    ]
    found = system.processes(json.dumps(rows), lambda pid: pid == 2)
    assert [(p["state"], p["health"]) for p in found] == [
        ("dead", "does not serve"),
        ("starting", "starts"),
        ("waiting", "does not serve"),
    ]
    assert found[1]["since"] == "1970-01-01T00:00:01.500+00:00" and found[2]["restarts"] == 2
    assert system.processes("{") == [] == system.processes("")
    assert not system.alive(0) and system.alive(1)


def _expansion(parent: bytes, ordinal: int, **more: Any) -> tree_pb2.PlannedExpansion:
    branch = tree_pb2.BranchRef(parent=parent, fork=4, ordinal=ordinal)
    return tree_pb2.PlannedExpansion(branch=branch, **more)


def test_plans_say_why_a_tree_has_its_shape(here_forge: Any) -> None:
    forge, root = here_forge
    parent = forge.child(root, 0, 8, finish=Finish.BOUNDARY)
    forced = forge.child(parent, 1, 6, fork=4, finish=Finish.PRUNED)
    record = tree_pb2.PlanRecord(
        claim_epoch=2,
        number=3,
        expansions=[
            _expansion(parent.id, 0),
            _expansion(parent.id, 1, forced=[5, 6], origin=tree_pb2.SEGMENT_ORIGIN_BRANCH),
        ],
        prunes=[
            tree_pb2.PlannedPrune(
                branch=tree_pb2.BranchRef(parent=parent.id, fork=4, ordinal=1), end=6
            )
        ],
        leaves=[tree_pb2.PlannedLeaf(leaf=leaf_to_wire(Leaf(parent.id, 5)), reason="answered")],
    )
    plans = why.read([record])
    words = why.of_node(plans, forced, 0, 6, siblings=2, is_leaf=False)
    assert words == (
        "plan 3 of claim 2 forked it off after token 4 of its parent of 2 that it started there;"
        " it begins with 2 tokens chosen by the tree policy;"
        " plan 3 of claim 2 pruned it after 6 tokens"
    )
    cut = why.of_node(plans, parent, 0, 5, siblings=1, is_leaf=True)
    assert cut == "the tree policy ended the path, after 5 of 8 sampled tokens: answered"
    assert why.of_node(why.Plans(), parent, 0, 8, siblings=1, is_leaf=False) is None
    shown = why.document(plans, forced)
    assert shown and shown["started"]["forced_tokens"] == 2 and shown["pruned"]["kept_tokens"] == 6
    assert why.document(plans, parent) is None


@pytest.fixture
def here_forge() -> Any:
    from tests.gateway.page.made_trees import RunForge

    forge = RunForge()
    return forge, forge.root(forge.spec())


def tokenizer(**parts: Any) -> bytes:
    made = Tokenizer(models.WordLevel({"▁a": 0, "b": 1, "▁c": 2, "<s>": 3}, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made.to_str().encode()


def test_texts_of_tokens_join_to_the_text_of_all() -> None:
    texts = TokenTexts(tokenizer())
    assert texts.each([0, 1, 2], None) == ["a", "b", " c"]  # the first space is the decoder's own
    assert texts.each([0, 1, 2], 1) == [" a", "b", " c"]
    assert "".join(texts.each([0, 1, 2], None)) == texts.whole([0, 1, 2]) == "ab c"
    assert texts.each([], 1) == []


async def test_with_a_tokenizer_tokens_and_parts_have_texts(here: Any) -> None:
    forge = here.store.forge
    forge.run_id = "told-1"
    run = forge.run()
    put = rs.PutRunRequest(run=run, request_id="t", gateway_epoch=1, tokenizer=tokenizer())
    await rpc.call(here.store.runs.PutRun, put)
    spec = forge.spec()
    await here.store.publish(forge.opened(spec))
    epoch = await here.store.claim(spec.tree_id)
    root = forge.root(spec)
    long = forge.child(
        root, 0, 4, tokens_T=np.array([0, 1, 2, 1], np.int32), text="ab cb", finish=Finish.BOUNDARY
    )
    short = forge.child(long, 0, 1, fork=2, tokens_T=np.array([2], np.int32), text=" c")
    assert short.kind is Kind.POLICY and short.origin is Origin.NONE
    await here.store.publish(
        forge.segments(root, long, short, epoch=epoch),
        forge.leaf(long, epoch=epoch),
        forge.leaf(short, epoch=epoch),
        forge.grown(spec.tree_id, long, short, epoch=epoch),
        forge.score(long),
        forge.score(short, 0.0),
    )
    await closed(here.store, spec.tree_id)
    document = await here.get(f"/api/trees/{spec.tree_id.hex()}")
    texts = {(n["start"], n["stop"]): n["text"] for n in document["nodes"] if n["tokens"] < 3}
    assert texts == {(0, 2): "ab", (2, 4): "cb", (0, 1): " c"}
    segment = await here.get(f"/api/trees/{spec.tree_id.hex()}/segments/{short.id.hex()}")
    assert segment["token_texts"] is None and segment["tokens"][0]["text"] == " c"
