"""Plain lines of a run: each step once, also after a resume and a restart of the gateway."""

from pathlib import Path

import pytest

from banyan.cli.render.live import LiveView, Past
from banyan.cli.runs import watch as watching
from banyan.errors import Refused
from banyan.recipe import Recipe
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs

RECIPE = Recipe.model_validate({"name": "x", "model": "m", "task": {"name": "arithmetic"}})


def news(
    *steps: int, state: int = rs.RUN_STATE_TRAINING, epoch: int = 1, leaves: int = 0
) -> gw.WatchRunResponse:
    created = [
        events_pb2.PolicyPublished(
            policy=tree_pb2.PolicyRef(learner_epoch=epoch, step=step),
            metrics={"reward": step / 7} if step else {},
        )
        for step in steps
    ]
    samples = rs.SampleCounts(leaves=leaves, scored=leaves, reward_sum=leaves / 3)
    progress = rs.ReadProgressResponse(step=max(steps, default=0), samples=samples)
    return gw.WatchRunResponse(
        run=rs.Run(run_id="r", state=state), progress=progress, policies=created
    )


def steps(text: str) -> list[int]:
    return [
        int(line.split("step ")[1].split("/")[0]) for line in text.splitlines() if "step " in line
    ]


def test_each_step_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView(RECIPE) as view:
        for message in (news(0, 1), news(2), news(0, 1, 2, 3), news(3, epoch=2)):
            view.update(message)
    reported = capsys.readouterr().out
    assert steps(reported) == [1, 2, 3, 3]
    assert [" again " in line for line in reported.splitlines() if "step " in line] == [
        False,
        False,
        False,
        True,
    ]


def test_a_batch_that_nobody_could_score_has_no_reward(capsys: pytest.CaptureFixture[str]) -> None:
    message = news(0, 1, 2)
    del message.policies[2].metrics["reward"]
    message.policies[2].metrics["leaves"] = 8
    with LiveView(RECIPE) as view:
        view.update(message)
    watching.Watch(as_json=False).update(message)
    lines = [line for line in capsys.readouterr().out.splitlines() if "reward " in line]
    assert [line.split("reward ")[1].split()[0] for line in lines] == ["0.143", "-", "-"]


def test_leaves_that_nobody_could_score_are_told_at_each_step_and_evaluation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scored, unscored = news(0, 1), news(2)
    unscored.progress.samples.unscorable = 1500
    with LiveView(RECIPE) as view:
        view.update(scored)
        view.update(unscored)
    first, second = [line for line in capsys.readouterr().out.splitlines() if "step " in line]
    assert "unscorable" not in first and "  unscorable 1,500  left" in second


def test_a_resumed_run_prints_only_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView(RECIPE, Past()) as view:
        for message in (news(0, 1, 2), news(3), news(0, 1, 2, 3, 4)):
            view.update(message)
    assert steps(capsys.readouterr().out) == [3, 4]


def test_each_evaluation_is_printed_once_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """Not while rows are missing, and not again after a restart of the gateway."""
    run = rs.Run(run_id="r", state=rs.RUN_STATE_TRAINING, held_out=[b"1", b"2"])
    counts = [(1, 1, 1.0, 1), (2, 1, 1.0, 1), (2, 2, 1.0, 1), (2, 2, 1.0, 1)]
    with LiveView(RECIPE) as view:
        for groups, done, total, right in counts:
            view.update(_measured(run, "step-5-greedy", groups, done, total, right))
        view.update(_measured(run, "after-greedy", 2, 2, 0.75, 0))
        voted = _measured(run, "after-voted", 2, 2, 1.0, 1)
        voted.progress.evals[0].votes.CopyFrom(rs.Votes(rows=2, correct=2, leaf_correct_sum=1.0))
        voted.progress.evals[0].head_votes.CopyFrom(rs.Votes(rows=2, correct=1))
        view.update(voted)
    with LiveView(RECIPE, Past()) as view:
        view.update(_measured(run, "step-5-greedy", 2, 2, 1.0, 1))
    with LiveView(RECIPE) as view:
        view.update(_measured(rs.Run(state=run.state), "step-5-greedy", 2, 2, 1.0, 1))
    lines = [line.split("] ")[1] for line in capsys.readouterr().out.splitlines() if ":" in line]
    assert lines == [
        "step-5-greedy: 50.0 %",
        "after-greedy: mean reward 0.375",
        "after-voted: a leaf 50.0 %, majority 100.0 %, by head 50.0 %",
    ]


def _measured(
    run: rs.Run, label: str, groups: int, done: int, total: float, right: int
) -> gw.WatchRunResponse:
    measured = rs.EvalProgress(
        label=label, groups=groups, done=done, scored=done, reward_sum=total, correct=right
    )
    return gw.WatchRunResponse(run=run, progress=rs.ReadProgressResponse(evals=[measured]))


def test_a_watcher_gets_a_line_for_each_step_with_rounded_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = watching.Watch(as_json=False)
    for message in (news(1, leaves=8), news(leaves=9), news(1, leaves=12), news(2, leaves=20)):
        message.progress.step = max(message.progress.step, 1)
        watch.update(message)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  sampled")[0] for line in lines] == [
        "training  step 1  reward 0.143  leaves 8",
        "training  step 2  reward 0.286  leaves 20",
    ]


def test_the_end_of_a_run_is_told_and_the_way_on_from_one_that_is_not_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = rs.Run(run_id="r", state=rs.RUN_STATE_FAILED, cause="no rows [/x]")
    watching.end(failed, rs.ReadProgressResponse(step=4), Path("s"), False)
    assert (
        capsys.readouterr().out == "failed  step 4  reward -  leaves 0  sampled 0  no rows [/x]\n"
    )
    paused = rs.Run(run_id="r-12", state=rs.RUN_STATE_PAUSED, step=4)
    with pytest.raises(Refused, match=r"PAUSED at step 4.* train --run r-12 --state s"):
        watching.end(paused, rs.ReadProgressResponse(), Path("s"), False)
