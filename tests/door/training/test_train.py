"""`banyan.train` from scripts: rows and a reward of the script's own, Ctrl-C, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import banyan
from banyan.errors import InvalidInput, RunEnded
from banyan.runtime import state_folder
from tests.cli.command import process as command
from tests.faults.harness import tiny_model
from tests.system.tiny import byte_tokenizer

ROOT = Path(__file__).parents[3]
ROWS = [{"prompt": f"say {n}", "answer": str(n)} for n in range(20)]
SCRIPT = """
import asyncio, json, math
import banyan

MOST = 6
ROWS = [{"prompt": f"say {n}", "answer": str(n)} for n in range(20)]

def scaled(value):
    return value / MOST

def reward(completion, answer, **row):
    assert int(answer) < 20
    return min(1.0, scaled(sum(map(ord, completion)) % 7)) * math.exp(0)

def trained(steps, **more):
    return banyan.train(
        dataset=ROWS, reward=reward, model="model", steps=steps,
        task={"holdout": 0.2}, generate={"settings": {"width": 4}, "max_new_tokens": 6},
        control={"groups_per_batch": 4, "max_staleness": 0},
        eval={"samples": 0, "max_rows": 4},
        resources={"engine": "torch", "threads": 1, "kv_tokens": 4096, "max_branches": 8,
                   "dtype": "float32"},
        **more,
    )
"""
WHOLE = """
run = trained(2)
tree = next(run.whole_trees())
print(json.dumps({
    "state": run.state, "checkpoint": str(run.checkpoint), "rows": run.metrics(),
    "trees": [t.mean_reward for t in run.trees()], "leaves": [l.reward for l in tree.leaves],
    "other": [c.advantage for c in tree.advantages(estimator="rloo")],
    "evaluations": [e.label for e in run.evaluations()],
    "measured": next(
        (e.mean_reward, e.answers) for e in run.evaluations() if e.label == "after-greedy"
    ),
}))
"""
# A notebook calls within a loop that runs already.
IN_A_LOOP = """
async def cell():
    trained(2000)
asyncio.run(cell())
"""
FAILING = """
try:
    trained(2, optimise={"learning_rate": 1e-4}, budget={"minutes": 0.0001})
except banyan.BanyanError as error:
    print(json.dumps({"kind": type(error).__name__, "state": error.state, "text": str(error)}))
"""


# Where tests run in the background, their shell ignores SIGINT for them and what they start.
HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, sys.argv[1]])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scripts")
    byte_tokenizer(tiny_model(made / "model", vocab=257))
    return made


def started(folder: Path, name: str, end: str) -> "subprocess.Popen[str]":
    (folder / name).write_text(SCRIPT + end)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "BANYAN_STATE": str(folder / f"{name}.state")}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", HEARING, name],
        cwd=folder,
        env=env,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


@pytest.mark.slow
def test_a_script_trains_on_its_rows_with_its_reward(folder: Path) -> None:
    said, errors = started(folder, "whole.py", WHOLE).communicate(timeout=240)
    lines = said.splitlines()
    result = json.loads(lines[-1])
    assert result["state"] == "SUCCEEDED", errors
    assert [row["step"] for row in result["rows"]] == [1, 2]
    assert (Path(result["checkpoint"]) / "manifest.json").is_file()
    assert len(result["trees"]) == 8 and len(result["leaves"]) == 4 and result["other"]
    assert set(result["evaluations"]) == {"before-greedy", "after-greedy"}
    assert any("step   2/2" in line for line in lines), "a line for each step without a terminal"
    assert said.count("run python-") == 1, "the script ran once"
    state = folder / "whole.py.state"
    assert not state_folder.locked(state)
    run_id = Path(result["checkpoint"]).parents[1].name
    again = json.loads(command("eval", run_id, "--json", "--state", state, cwd=folder).stdout)
    # The same rewards, added up in another order.
    assert again["mean_reward"] == pytest.approx(result["measured"][0], abs=1e-12)
    assert again["n"] == result["measured"][1]
    sampled = [
        command("sample", run_id, "--prompt", "say 3", "-n", "3", "--json", "--state", state).stdout
        for _ in range(2)
    ]
    answers = [json.loads(line)["text"] for line in sampled[0].splitlines()]
    assert sampled[0] == sampled[1] and len(answers) == 3 and len(set(answers)) > 1


@pytest.mark.slow
def test_ctrl_c_in_a_loop_pauses_the_run_and_ends_everything(folder: Path) -> None:
    process = started(folder, "looped.py", IN_A_LOOP)
    assert process.stdout is not None and process.stderr is not None
    end = time.monotonic() + 180
    for line in process.stdout:
        if "step   2/" in line:
            break
        assert time.monotonic() < end, line
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors, errors
    assert "is paused" in errors and " train --resume" in errors  # by `banyan`, if it is on PATH
    state = folder / "looped.py.state"
    assert not state_folder.locked(state)
    with banyan.open(state) as store:
        run = store.run()
        assert run.state == "PAUSED" and run.step >= 2
        assert (run.checkpoint / "manifest.json").is_file()
        assert run.recipe.filter[0].name.startswith("banyan_reward_")
        assert (state / "python" / "code").is_dir()


@pytest.mark.slow
def test_a_run_that_fails_is_an_error_with_its_state(folder: Path) -> None:
    said, errors = started(folder, "failing.py", FAILING).communicate(timeout=240)
    result = json.loads(said.splitlines()[-1])
    assert (result["kind"], result["state"]) == ("RunEnded", "FAILED"), errors
    assert "logs are in" in result["text"] and issubclass(RunEnded, banyan.BanyanError)


def broken(completion: str, **row: object) -> float:
    return 1.0 / 0.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reward": broken}, "ZeroDivisionError"),
        ({"reward": "number", "dataset": ["say 1"]}, "answer"),
        ({"reward": "no-such"}, "no-such"),
        ({"reward_funcs": "number"}, "has no keyword reward_funcs; write reward "),
        ({"reward": "number", "listen": "nowhere"}, "must be host:port"),
        ({"reward": "number", "generate": {"policy": "no-such"}}, "no-such"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    given: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=words):
        banyan.train(**{"dataset": ROWS, "state": tmp_path / "s", **given})
    assert not (tmp_path / "s" / "store.sqlite").exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="holds other things"):
        banyan.train(dataset=ROWS, reward="number", state=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
