"""The diagnosis of a run: made once a step for all who watch it, and anew when there is more."""

from typing import Any

import pytest

from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.gateway.page.documents import diagnosis
from services.gateway.page.reads import Reads


async def put_steps(here: Any, numbers: range) -> None:
    for number in numbers:
        policy = tree_pb2.PolicyRef(learner_epoch=1, step=number, digest=bytes([number]) * 32)
        metrics = {"reward": 0.5, "applied": 0.0}
        published = events_pb2.PolicyPublished(
            run_id=here.store.forge.run_id, policy=policy, metrics=metrics
        )
        await rpc.call(here.store.runs.PutPolicy, rs.PutPolicyRequest(policy=published))


async def test_it_is_made_once_a_step(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = f"/api/runs/{here.store.forge.run_id}/doctor", 0
    policies = Reads.policies

    async def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        return await policies(*arguments, **more)

    monkeypatch.setattr(Reads, "policies", counted)
    assert (await here.get(path))["findings"] == [] and made == 1
    await put_steps(here, range(1, 13))
    found = await here.get(path)
    assert found["findings"][0]["rule"] == "nothing-applied" and made == 2
    assert await here.get(path) == found and made == 2
    health = await here.get(path.replace("doctor", "health"))
    assert health["finding"] == found["findings"][0] and made == 2
    assert health["findings"] == len(found["findings"])
    await put_steps(here, range(13, 14))
    await here.get(path)
    assert made == 3


def test_its_revision_is_that_of_steps_evaluations_and_batches() -> None:
    def revision(step: int = 3, **more: Any) -> str:
        progress = rs.ReadProgressResponse(step=step, **more)
        return diagnosis.revision(rs.ReadRunResponse(run=rs.Run(step=step), progress=progress))

    evaluation = rs.EvalProgress(label="before-greedy", scored=3)
    others = [
        revision(step=4),
        revision(batches=4),
        revision(evals=[evaluation]),
        revision(set_aside=[rs.SetAside(ordinal=2, cause="x")]),
    ]
    assert len({revision(), *others}) == 5
    samples = rs.SampleCounts(sampled_tokens=9)  # which rise all the time
    assert revision(samples=samples) == revision()
