"""Several unfinished runs in one folder: the choice, its output, and an end while nothing runs."""

import json
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.faults.harness import recipe, tiny_model
from tests.system.joining import command


async def paused(folder: Path, state: Path, file: Path) -> str:
    """Make a run that was interrupted after its first step; return its id."""
    async with command(folder / "paused.out", "train", str(file), "--state", str(state)) as created:
        run_id = (await created.says(r"run (\S+):"))[1]
        await created.says(r"step +1/")
        created.stop(signal.SIGINT)
        assert await created.ends() == 130, created.output
        assert f"train --resume --state {state}" in created.output
    return run_id


async def said(folder: Path, state: Path, *words: str) -> tuple[int, str]:
    async with command(folder / "said.out", *words, "--state", str(state)) as created:
        return await created.ends(), created.output


@pytest.mark.slow
async def test_the_named_run_is_resumed_and_another_is_cancelled_while_nothing_runs(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.py").write_text(
        "def f(completion, answer, **row):\n    return float(len(completion) % 2)\n"
    )
    for name in ("services", "methods", "banyan"):  # a user's packages of our names
        (tmp_path / "recipe" / f"{name}.py").write_text("raise ImportError('the wrong one')\n")
    data = recipe(
        tiny_model(tmp_path / "model"),
        filter=[{"name": "mine:f"}],
        task={"name": "arithmetic", "holdout": 0.0},
    )
    (tmp_path / "recipe" / "r.yaml").write_text(yaml.safe_dump(data))
    first, second = [
        await paused(tmp_path, state, tmp_path / "recipe" / "r.yaml") for _ in range(2)
    ]

    status, text = await said(tmp_path, state, "runs", "watch", second)
    assert status == 1 and f"train --run {second}" in text and "Traceback" not in text
    status, text = await said(tmp_path, state, "runs", "cancel", second[:-2], "--json")
    assert status == 0 and json.loads(text)["state"] == "CANCELLED", text
    status, text = await said(tmp_path, state, "runs", "cancel", second)
    assert status == 1 and "CANCELLED already" in text

    status, text = await said(tmp_path, state, "runs", "rm", first)
    assert status == 1 and f"{first} is PAUSED and may go on" in text, text
    assert (state / "runs" / second / "checkpoints").exists() and list(
        (state / "logs").glob(f"*{second}*")
    )
    status, text = await said(tmp_path, state, "runs", "rm", second, "--json")
    assert status == 0 and json.loads(text)["rows"] > 0, text
    assert not (state / "runs" / second).exists() and not list((state / "logs").glob(f"*{second}*"))
    status, text = await said(tmp_path, state, "runs", "ls", "--json")
    assert [run["run_id"] for run in json.loads(text)] == [first], text

    status, text = await said(tmp_path, state, "train", "--run", first)
    assert status == 0 and f"{first} SUCCEEDED" in text, text
    at = int(re.search(rf"run {first}: goes on at step (\d+)", text)[1])  # type: ignore[index]
    assert second not in text
    assert [int(n) for n in re.findall(r"step +(\d+)/6", text)] == list(range(at + 1, 7))
    status, text = await said(tmp_path, state, "runs", "watch", first)
    assert status == 0 and text.startswith("succeeded  step 6")


@pytest.mark.slow
async def test_a_run_that_is_paused_from_elsewhere_says_where_its_checkpoint_is(
    tmp_path: Path,
) -> None:
    state, file = tmp_path / "state", tmp_path / "r.yaml"
    data = recipe(
        tiny_model(tmp_path / "model"),
        task={"name": "arithmetic", "holdout": 0.0},
        budget={"steps": 500},
    )
    file.write_text(yaml.safe_dump(data))
    async with command(tmp_path / "made.out", "train", str(file), "--state", str(state)) as created:
        run_id = (await created.says(r"run (\S+):"))[1]
        await created.says(r"step +1/")
        status, text = await said(tmp_path, state, "runs", "cancel", run_id, "--pause")
        assert status == 0, text
        assert await created.ends(60.0) == 1, created.output
        assert re.search(r"checkpoint +\S*step-\d+-epoch-1", created.output), created.output
        assert f"train --run {run_id} --state {state}" in created.output


@pytest.mark.slow
async def test_a_run_goes_on_from_another_folder_and_after_it_failed(tmp_path: Path) -> None:
    """Its model and its scorer lie beside the recipe.

    A missing model leaves it as it is; a scorer that raises fails it, and once that is mended it is
    resumed.
    """
    state, home, elsewhere = tmp_path / "state", tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    tiny_model(home / "model")
    score = "def f(completion, answer, **row):\n    return float(len(completion) % 2)\n"
    (home / "mine.py").write_text(score)
    data = recipe(
        Path("model"),
        filter=[{"name": "mine:f"}],
        task={"name": "arithmetic", "holdout": 0.0},
        budget={"steps": 20},
    )
    (home / "r.yaml").write_text(yaml.safe_dump(data))

    async with command(
        tmp_path / "1.out", "train", str(home / "r.yaml"), "--state", str(state), cwd=home
    ) as created:
        run_id = (await created.says(r"run (\S+):"))[1]
        await created.says(r"step +1/")
        created.stop(signal.SIGINT)
        assert await created.ends() == 130, created.output

    (home / "model").rename(home / "away")
    status, text = await said(tmp_path, state, "train", "--resume")
    assert (
        status == 2
        and f"run {run_id} cannot go on, and stays as it is: model '{home / 'model'}'" in text
    ), text
    (home / "away").rename(home / "model")

    (home / "mine.py").write_text(score.replace("len(completion)", "missing"))
    async with command(
        tmp_path / "2.out", "train", "--resume", "--state", str(state), cwd=elsewhere
    ) as created:
        assert await created.ends() == 1, created.output
        assert re.search(
            rf"{run_id} FAILED: \d+ groups in a row have no scored leaf", created.output
        ), created.output
    (home / "mine.py").write_text(score)
    async with command(
        tmp_path / "3.out", "train", "--resume", "--state", str(state), cwd=elsewhere
    ) as created:
        assert await created.ends() == 0 and f"{run_id} SUCCEEDED" in created.output, created.output
