"""Messages of a watched run."""

from banyan.recipe import Recipe
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs

RECIPE = Recipe.model_validate(
    {
        "name": "x",
        "model": "m",
        "task": {"name": "arithmetic"},
        "budget": {"steps": 40},
        "control": {"groups_per_batch": 8},
        "eval": {"every": 20},
    }
)
HELD_OUT = 44


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def news(
    state: "rs.RunState.ValueType" = rs.RUN_STATE_TRAINING,
    *steps: int,
    done: dict[str, int] | None = None,
    closed: int = 0,
    batches: int = 0,
    epoch: int = 1,
) -> gw.WatchRunResponse:
    """Return a message about a run that is at the last of some steps.

    done: rows that are done, by label of an evaluation.
    """
    evals = [
        rs.EvalProgress(
            label=label, groups=HELD_OUT, done=rows, scored=rows, reward_sum=rows, correct=rows
        )
        for label, rows in (done or {}).items()
    ]
    progress = rs.ReadProgressResponse(
        batches=batches or max(steps, default=0),
        groups=rs.GroupCounts(closed=closed),
        evals=evals,
        growing_nodes=1,
    )
    if steps:
        progress.step = max(steps)
    policies = [
        events_pb2.PolicyPublished(
            policy=tree_pb2.PolicyRef(learner_epoch=epoch, step=step),
            metrics={"reward": 0.5} if step else {},
        )
        for step in steps
    ]
    run = rs.Run(run_id="x-1", state=state, held_out=[b"%d" % i for i in range(HELD_OUT)])
    return gw.WatchRunResponse(run=run, progress=progress, policies=policies)
