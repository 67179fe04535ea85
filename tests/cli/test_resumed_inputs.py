"""`banyan train --resume` of a run without its rows: refused by name, and the run stays as it
is."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.train.session import Session
from banyan.recipe_loader.load import resolve
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from tests.cli.command import banyan
from tests.cli.folders import whole_model
from tests.treestore.client import served

RUN = "mine-00000000"


async def _paused(nats: str, state: Path, recipe: dict[str, Any]) -> None:
    """Leave a paused run of this recipe in the folder."""
    async with served(nats, state, begin=False) as store:
        epoch = (
            await rpc.call(store.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))
        ).epoch
        run = rs.Run(
            run_id=RUN, recipe_json=resolve(recipe).model_dump_json(), state=rs.RUN_STATE_TRAINING
        )
        await rpc.call(
            store.runs.PutRun, rs.PutRunRequest(run=run, request_id="r", gateway_epoch=epoch)
        )
        move = rs.MoveRunRequest(
            run_id=RUN,
            gateway_epoch=epoch,
            from_state=rs.RUN_STATE_TRAINING,
            to_state=rs.RUN_STATE_PAUSED,
        )
        await rpc.call(store.runs.MoveRun, move)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the sessions that begin; none of them runs."""
    created: list[str] = []

    async def run(self: Session) -> int:
        created.append("a session")
        return 0

    monkeypatch.setattr(Session, "run", run)
    return created


def test_a_run_whose_rows_are_gone_is_left_as_it_is(
    nats_server: Any, tmp_path: Path, begun: list[str]
) -> None:
    rows, state = tmp_path / "rows.jsonl", tmp_path / "state"
    rows.write_text('{"question": "1+1"}\n')
    (tmp_path / "mine.py").write_text("def f(completion, **row):\n    return 1.0\n")
    recipe = {"name": "mine", "model": whole_model(tmp_path), "resources": {"engine": "scripted"}}
    recipe |= {
        "task": {"name": "file", "path": str(rows), "prompt": "question", "reward": "mine:f"}
    }
    recipe |= {
        "filter": [{"name": "number"}]
    }  # no function of the user's, whose trial would read the rows as well
    asyncio.run(_paused(nats_server.url, state, recipe))

    rows.rename(tmp_path / "away.jsonl")
    output = banyan("train", "--resume", "--state", state, cwd=tmp_path)
    assert output.returncode == 2, output
    assert (
        f"run {RUN} cannot go on, and stays as it is: task.path '{rows}': there is no file {rows}"
        in output.stderr
    )
    assert not begun
    (run,) = json.loads(banyan("runs", "ls", "--state", state, "--json").stdout)
    assert (run["run_id"], run["state"]) == (RUN, "PAUSED")

    (tmp_path / "away.jsonl").rename(rows)
    output = banyan("train", "--resume", "--state", state, cwd=tmp_path)
    assert output.returncode == 0 and begun == ["a session"], output
