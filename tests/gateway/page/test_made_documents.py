"""Documents of made messages: what is missing is missing, and each number is that of its name."""

import json
import math
from typing import Any

import pytest

from banyan.recipe_loader import load
from banyan.text.redaction import HIDDEN
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import leaf_to_wire, segment_to_wire
from services.gateway.page import sources
from services.gateway.page.documents import diagnosis, runs, segments, trees
from services.gateway.page.run_clocks import RunClocks
from tests.gateway.page.made_trees import RECIPE, RunForge, branches

RUN = rs.Run(
    run_id="r",
    recipe_json=load.resolve(dict(RECIPE)).model_dump_json(),
    state=rs.RUN_STATE_TRAINING,
    step=5,
)


def policy(step: int, unix_ms: int = 0, **metrics: float) -> rs.StoredPolicy:
    ref = tree_pb2.PolicyRef(learner_epoch=1, step=step, digest=bytes([step + 1]) * 32)
    published = events_pb2.PolicyPublished(run_id="r", policy=ref, metrics=metrics)
    return rs.StoredPolicy(published=published, number=step + 1, stored_unix_ms=unix_ms)


@pytest.mark.parametrize("field", ["state", "claim_epoch", "segments", "leaves", "scores"])
def test_whatever_changes_a_tree_changes_its_revision(field: str) -> None:
    before, after = ts.TreeSummary(), ts.TreeSummary()
    setattr(after, field, 1)
    assert trees.revision(before) != trees.revision(after)


def test_a_score_that_is_missing_is_no_zero() -> None:
    state = tree_pb2.SCORE_STATE_UNSCORABLE
    missing = tree_pb2.Score(state=state, reason="TIMEOUT: no answer in 5 s")
    found = trees.score(tree_pb2.ScoredLeaf(scorer="judge", score=missing))
    assert found["value"] is None and found["state"] == "UNSCORABLE"
    assert found["reason"] == "TIMEOUT: no answer in 5 s"


def test_a_score_says_how_long_it_took_where_the_store_knows() -> None:
    timed = tree_pb2.ScoredLeaf(scorer="number", duration_ms=2500)
    assert trees.score(timed)["seconds"] == 2.5
    assert trees.score(tree_pb2.ScoredLeaf(scorer="number"))["seconds"] is None


def whole_tree() -> tuple[tree_pb2.Tree, list[Any]]:
    """Return a tree of two leaves, one of which was scored again, and its segments."""
    forge = RunForge()
    spec = forge.spec()
    root = forge.root(spec)
    (leaves,) = branches(forge, root, (2,))
    ends = [leaf_to_wire(Leaf(leaf.id, len(leaf))) for leaf in leaves]
    scored = [
        tree_pb2.ScoredLeaf(
            leaf=end,
            scorer=scorer,
            score=tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value),
        )
        for end, scorer, value in ((ends[0], "number", 1.0), (ends[0], "length", 0.5))
    ]
    tree = tree_pb2.Tree(
        spec=spec,
        segments=[segment_to_wire(s) for s in (root, *leaves)],
        scores=scored[:1],
        rescores=[tree_pb2.Rescore(scored=scored[1])],
    )
    return tree, leaves


def test_a_tree_without_a_sampled_token_has_no_policy_step_yet() -> None:
    assert trees.summary(ts.TreeSummary(segments=1))["policy_step"] is None
    of_the_first = trees.summary(ts.TreeSummary(segments=2, sampled_tokens=9))
    assert of_the_first["policy_step"] == 0


def test_a_later_score_is_marked_as_such() -> None:
    tree, leaves = whole_tree()
    found = segments.segment(tree, leaves[0].id, (), None)["scores"]
    assert [(s["scorer"], s["again"]) for s in found] == [("number", False), ("length", True)]
    assert segments.segment(tree, leaves[1].id, (), None)["scores"] == []


def test_a_segment_leads_to_its_batch_and_its_policy() -> None:
    tree, leaves = whole_tree()
    done = ts.Consumer(
        batch=ts.Batch(ordinal=4, use="train"), policy=tree_pb2.PolicyRef(step=9, learner_epoch=1)
    )
    under_way = ts.Consumer(batch=ts.Batch(ordinal=5, use="replay"))
    assert segments.segment(tree, leaves[0].id, [done, under_way], None)["lineage"] == [
        {"batch": 4, "use": "train", "step": 9},
        {"batch": 5, "use": "replay", "step": None},
    ]


def test_an_answer_has_its_outcome_and_its_effect() -> None:
    observation = tree_pb2.Observation(
        environment="calculator",
        outcome=tree_pb2.TOOL_OUTCOME_CRASHED,
        effect=tree_pb2.TOOL_EFFECT_NONE,
        reward=math.nan,
    )
    found = segments._receipt(tree_pb2.Receipt(observation=observation, call="add 1 2"))
    assert (found["outcome"], found["effect"]) == ("CRASHED", "NONE")
    assert (found["environment"], found["call"], found["reward"]) == ("calculator", "add 1 2", None)


def test_what_the_policy_did_not_make_has_no_policy_step() -> None:
    tree, _ = whole_tree()
    root = segments.segment(tree, tree.segments[0].id, (), None)
    assert root["policy_step"] is None and root["kind"] == "CONTEXT"


def diagnosed(policies: list[rs.StoredPolicy], **progress: Any) -> dict[str, Any]:
    answer = rs.ReadRunResponse(run=RUN, progress=rs.ReadProgressResponse(**progress))
    return diagnosis.document(answer, policies, {}, shape=None, trees=[], steps={})


def test_a_diagnosis_says_how_urgent_what_is_and_when_it_is_too_early() -> None:
    early = diagnosed([policy(1, reward=0.5)])
    assert early["findings"] == [] and early["note"].startswith("1 steps say nothing yet")
    steps = [policy(n, reward=0.5, applied=0.0, unscorable_share=0.5) for n in range(1, 31)]
    found = diagnosed(steps, set_aside=[rs.SetAside(ordinal=7, cause="its loss is not finite")])
    assert found["note"] is None and found["steps"] == 30
    severity = {finding["rule"]: finding["severity"] for finding in found["findings"]}
    assert severity["nothing-applied"] == "error" == severity["batch-set-aside"]
    assert "warning" in severity.values(), severity
    order = [finding["severity"] for finding in found["findings"]]
    assert order == sorted(order), order  # "error" before "warning", the last rule's included
    words = [f["sentence"] for f in found["findings"] if f["rule"] == "batch-set-aside"]
    assert words == ["batch 7 is set aside: its loss is not finite"]


def paced(*policies: rs.StoredPolicy) -> float | None:
    seconds: float | None = diagnosis.health({"findings": []}, policies)["step_seconds"]
    return seconds


def test_a_runs_pace_is_that_of_its_newest_steps_and_of_no_pause() -> None:
    steps = [policy(n, 1000 * n, reward=0.5) for n in range(10)]
    assert paced() is None and paced(steps[0]) is None
    assert paced(*steps) == 1.0
    slower = [policy(10 + n, 19_000 + 10_000 * n, reward=0.5) for n in range(5)]
    assert paced(*steps, *slower) == 10.0, "five are the newest ones"
    resumed = policy(11, 999_000, reward=0.5)
    resumed.published.policy.learner_epoch = 2
    assert paced(*steps, resumed) is None, "its pause is no step"
    again = policy(10, 9_001)  # a repetition, without metrics
    assert paced(*steps, again) == 1.0
    newest = diagnosis.health({"findings": []}, steps)["newest_step"]
    assert newest == "1970-01-01T00:00:09+00:00"


def test_a_runs_time_is_in_seconds_and_its_savings_count_prompts() -> None:
    answer = rs.ReadRunResponse(run=RUN, live_ms=12_340)
    samples = answer.progress.samples
    samples.sampled_tokens, samples.path_tokens = 60, 100
    samples.prompt_tokens, samples.prompt_path_tokens = 50, 300
    found = runs.whole(answer, [], None)
    assert found["run"]["seconds"] == 12.3
    saved = found["progress"]["saved_tokens"]
    assert saved > 0 and found["saved_share"] == pytest.approx(saved / 400)
    assert runs.saved_share(rs.SampleCounts()) is None


def test_secrets_that_stand_in_a_recipe_are_hidden() -> None:
    recipe = {
        "model": "https://me:hunter2@hub.example/model",
        "task": {"path": "https://rows.example/?api_key=hunter2", "config": {"token": "hunter2"}},
    }
    answer = rs.ReadRunResponse(run=rs.Run(run_id="r", recipe_json=json.dumps(recipe)))
    found = runs.whole(answer, [], None)
    assert "hunter2" not in json.dumps(found)
    assert found["recipe"]["task"]["config"]["token"] == HIDDEN
    assert found["run"]["model"].endswith("@hub.example/model")


def test_news_of_a_run_are_its_members_and_not_their_heartbeats() -> None:
    answer = rs.ReadRunResponse(run=RUN)
    member = rs.Member(node_id="rollout-0", present=True, seen_unix_ms=1)
    known = sources._fingerprint(answer, [member])
    later = rs.Member(node_id="rollout-0", present=True, seen_unix_ms=2)
    away = rs.Member(node_id="rollout-0", present=False, seen_unix_ms=1)
    assert sources._fingerprint(rs.ReadRunResponse(run=RUN, live_ms=7), [later]) == known
    assert sources._fingerprint(answer, [away]) != known != sources._fingerprint(answer, [])


async def test_the_time_left_follows_from_the_times_of_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten steps of three seconds each, of which five are done, and no evaluation."""

    class Reads:
        async def policies(self, run_id: str, after: int = 0) -> list[rs.StoredPolicy]:
            stored = [policy(n, 1_000_000 + 3000 * n, packed_tokens=10.0) for n in range(6)]
            return [p for p in stored if p.number > after]

    monkeypatch.setattr("services.gateway.page.run_clocks.time.time", lambda: 1015.0)
    recipe = load.resolve({**RECIPE, "eval": {"max_rows": 1}}).model_dump_json()
    run = rs.Run(run_id="r", recipe_json=recipe, state=rs.RUN_STATE_TRAINING, step=5)
    reads: Any = Reads()
    left_s = await RunClocks(reads).left_s(rs.ReadRunResponse(run=run, live_ms=15_000))
    assert left_s is not None and 12.0 <= left_s <= 40.0
    ended = rs.Run(run_id="r", recipe_json=recipe, state=rs.RUN_STATE_SUCCEEDED, step=10)
    assert await RunClocks(reads).left_s(rs.ReadRunResponse(run=ended)) is None
