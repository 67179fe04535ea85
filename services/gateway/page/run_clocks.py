"""The time that runs still take, told from what the store says of their steps, and kept between
requests: a long run has many.
"""

import time
from collections import OrderedDict

from banyan.progress import run_status
from banyan.progress.time_left import Pace
from banyan.recipe import Recipe
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from services.gateway.page.documents.runs import WORKING
from services.gateway.page.reads import Reads

_MOST = 64  # runs that are kept


class _Clock:
    """The pace of one run, and the number of the last policy that it knows."""

    def __init__(self, recipe: Recipe, run: rs.Run) -> None:
        self.recipe, self.last = recipe, 0
        self.pace = Pace(run_status.work_of(recipe, run))

    def note(self, stored: rs.StoredPolicy) -> None:
        """Note the time of a step. Repetitions by a restarted learner, without metrics, are
        faster.
        """
        published, policy = stored.published, stored.published.policy
        self.last = stored.number
        if published.metrics or not policy.step:
            tokens = published.metrics.get("packed_tokens", 0.0)
            self.pace.step(policy.learner_epoch, policy.step, stored.stored_unix_ms / 1000, tokens)

    def left_s(self, answer: rs.ReadRunResponse, now: float) -> float | None:
        """Return the seconds that the run still takes; None while nothing tells them."""
        news = gw.WatchRunResponse(run=answer.run, progress=answer.progress)
        for step, done in run_status.rows_done(self.recipe, news).items():
            if done or answer.progress.growing_nodes:
                self.pace.evaluation(step, done, now)
        step = run_status.newest_step(self.recipe, news)
        left = self.pace.left(step, now, answer.live_ms / 1000)
        return None if left is None else round(max(0.0, left), 1)


class RunClocks:
    """The clocks of the runs that were looked at last."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._clocks: OrderedDict[str, _Clock] = OrderedDict()

    async def left_s(self, answer: rs.ReadRunResponse) -> float | None:
        """Return the seconds that a working run still takes; None while nothing tells them."""
        run = answer.run
        if run.state not in WORKING:
            self._clocks.pop(run.run_id, None)  # its pause is no step
            return None
        clock = self._clocks.get(run.run_id)
        if clock is None:
            try:
                recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
            except ValueError:  # of another version
                return None
            clock = self._clocks[run.run_id] = _Clock(recipe, run)
            while len(self._clocks) > _MOST:
                self._clocks.popitem(last=False)
        for stored in await self._reads.policies(run.run_id, after=clock.last):
            clock.note(stored)
        return clock.left_s(answer, time.time())
