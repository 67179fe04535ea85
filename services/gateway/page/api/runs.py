"""Endpoints of runs: the list, a run, its metrics, and its diagnosis."""

import asyncio
from collections.abc import Sequence
from typing import Any

from banyan.v1 import runstore_service_pb2 as rs
from services.gateway.page.api.endpoint import AFTER, LIMIT, RUN, Call, Endpoint
from services.gateway.page.documents import diagnosis, run_types, runs
from services.gateway.page.heavy import Heavy
from services.gateway.page.http.errors import encoded
from services.gateway.page.http.json_types import (
    NEXT,
    count,
    each,
    flag,
    nullable,
    ref,
    text,
)
from services.gateway.page.http.parameters import Parameter, cursor, place_of
from services.gateway.page.reads import Reads
from services.gateway.page.run_clocks import RunClocks

MOST_STEPS = 5000  # in one answer
_STEP = Parameter(
    name="after",
    about="Only steps after this one.",
    kind="integer",
    most=2**32 - 1,
)


class Runs:
    """Handlers of runs."""

    def __init__(self, reads: Reads, heavy: Heavy, clocks: RunClocks) -> None:
        self._reads, self._heavy, self._clocks = reads, heavy, clocks

    async def listed(self, call: Call) -> dict[str, Any]:
        limit = call.query["limit"]
        after = place_of("runs", call.query["after"], int, str)
        answer = await self._reads.runs(limit + 1, (after[0], after[1]) if after else None)
        found = list(zip(answer.runs, answer.live_ms, strict=True))
        shown = [runs.run(run, live_ms) for run, live_ms in found[:limit]]
        last = found[limit - 1][0] if len(found) > limit else None
        following = cursor("runs", last.created_unix_ms, last.run_id) if last else None
        return {"runs": shown, "next": following}

    async def one(self, call: Call) -> dict[str, Any]:
        answer = await self._reads.run(call.path["run"])
        members, left_s = await asyncio.gather(
            self._reads.members(answer.run.run_id), self._clocks.left_s(answer)
        )
        return runs.whole(answer, members, left_s)

    async def _steps(self, run_id: str) -> tuple[rs.ReadRunResponse, list[rs.StoredPolicy]]:
        answer = await self._reads.run(run_id)
        return answer, await self._reads.policies(answer.run.run_id)

    async def metrics(self, call: Call) -> bytes:
        answer, policies = await self._steps(call.path["run"])
        after = -1 if call.query["after"] is None else call.query["after"]
        return await self._heavy.run(lambda: _metrics(policies, answer, after))

    async def doctor(self, call: Call) -> bytes:
        return (await self._diagnosis(call.path["run"]))[0]

    async def health(self, call: Call) -> bytes:
        return (await self._diagnosis(call.path["run"]))[1]

    async def _diagnosis(self, run_id: str) -> tuple[bytes, bytes]:
        """Return the diagnosis of a run, and its beginning with the pace."""
        answer = await self._reads.run(run_id)
        # Whoever watches the run asks at the same steps, and each answer reads all that there are.
        known = (answer.run.run_id, str(answer.run.state), diagnosis.revision(answer))
        return await self._heavy.kept(("doctor", *known), lambda: self._diagnosed(answer))

    async def _diagnosed(self, answer: rs.ReadRunResponse) -> tuple[bytes, bytes]:
        run_id, shape = answer.run.run_id, diagnosis.shape_of(answer.run)
        policies, stats = await asyncio.gather(
            self._reads.policies(run_id), self._reads.stats(run_id)
        )
        steps: dict[bytes, int] = {}
        if shape is not None:
            steps = diagnosis.steps_of(await self._reads.summaries(diagnosis.newest_filter(run_id)))
        trees = await self._reads.trees(list(steps))

        def made() -> tuple[bytes, bytes]:
            found = diagnosis.document(
                answer, policies, stats, shape=shape, trees=trees, steps=steps
            )
            return encoded(found), encoded(diagnosis.health(found, policies))

        return await self._heavy.run(made)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/api/runs",
                about="Runs, newest first.",
                handler=self.listed,
                answers={"runs": each(ref("Run"), "a line each"), "next": NEXT},
                parameters=(LIMIT, AFTER),
            ),
            Endpoint(
                method="GET",
                path="/api/runs/{run}",
                about="A run with its progress, recipe and members.",
                handler=self.one,
                answers=run_types.WHOLE,
                places=(RUN,),
            ),
            *self._studies(),
        )

    def _studies(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                method="GET",
                path="/api/runs/{run}/metrics",
                about=f"Metrics of a run's steps, at most {MOST_STEPS} in one answer.",
                handler=self.metrics,
                answers={
                    "steps": run_types.STEPS,
                    "more": flag("whether later steps are left out: ask again after the last"),
                    "evaluations": each(ref("Measured"), "results on the held-out rows"),
                },
                places=(RUN,),
                parameters=(_STEP,),
            ),
            Endpoint(
                method="GET",
                path="/api/runs/{run}/doctor",
                about="Diagnosis of a run, as `banyan doctor RUN` makes it.",
                handler=self.doctor,
                answers={
                    "findings": each(ref("Finding"), "the most urgent first"),
                    "facts": text("what its trees share; empty where it does not matter"),
                    "steps": count("steps with metrics"),
                    "note": nullable(text("why there can be no finding yet; null if there can")),
                },
                places=(RUN,),
            ),
            Endpoint(
                method="GET",
                path="/api/runs/{run}/health",
                about="Pace of a run, and its most urgent finding, for a list of runs.",
                handler=self.health,
                answers=run_types.HEALTH,
                places=(RUN,),
            ),
        )


def _metrics(policies: Sequence[rs.StoredPolicy], answer: rs.ReadRunResponse, after: int) -> bytes:
    steps = runs.metrics(policies, after)
    return encoded(
        {
            "steps": steps[:MOST_STEPS],
            "more": len(steps) > MOST_STEPS,
            "evaluations": [runs.evaluation(e, answer.run.step) for e in answer.progress.evals],
        }
    )
