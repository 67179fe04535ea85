"""Output of commands: a model's words are no markup, empty results and disk errors are one line."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from banyan.cli import invocation
from banyan.cli import main as main_module
from banyan.cli.join import instructions
from banyan.cli.render import run_report, show
from banyan.cli.render.console import emit, table_of
from banyan.cli.train import resume
from banyan.errors import InvalidInput, NotFound
from banyan.runtime import run_files
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data


@pytest.mark.parametrize("text", ["[/b]", "[red]x", "[/]", "\\[/x]"])
def test_words_of_a_model_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    emit([{"text": text}], False, ("text",))
    emit({"text": text}, False)
    assert capsys.readouterr().out.count(text) == 2


def test_nothing_found_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    emit([], False, ("id", "reason"))
    assert capsys.readouterr().out == "none\n"
    emit([], True)
    assert capsys.readouterr().out == "[]\n"


def test_ids_and_long_lines_stay_whole_where_nobody_looks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"tree_id": "f" * 64, "reason": "word " * 40, "run_id": "r" * 70}
    emit([row], False, ("tree_id", "reason", "run_id"))
    _, line = capsys.readouterr().out.splitlines()
    assert (
        line.split("  ")[0] == "f" * 64
        and line.rstrip().endswith("r" * 70)
        and "word " * 40 in line
    )


def test_ids_stay_whole_on_a_narrow_terminal() -> None:
    console = Console(width=60)
    with console.capture() as output:
        console.print(table_of([{"id": "f" * 32, "reason": "word " * 20}], ("id", "reason")))
    assert "f" * 32 in output.get() and output.get().count("word") == 20


def test_where_everything_is_stays_on_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = rs.Run(run_id="r" * 90, state=rs.RUN_STATE_FAILED, cause="broken", folder=str(tmp_path))
    run_report._print_places(run, 1.0, tmp_path)
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 5 and output[0].startswith("r" * 90 + " FAILED at step 0")
    assert output[3].endswith(
        f" runs show {'r' * 90} --state {tmp_path}"
    ) and "broken" not in "".join(output)
    assert output[4].endswith(f" page {'r' * 90} --state {tmp_path}")


@pytest.mark.parametrize(
    ("called", "path", "command"),
    [
        (".venv/bin/banyan", "", ".venv/bin/banyan"),
        ("{here}/.venv/bin/banyan", "", ".venv/bin/banyan"),
        ("{here}/.venv/bin/banyan", "{here}/.venv/bin", "banyan"),
        ("/opt/a b/banyan", "", "'/opt/a b/banyan'"),
    ],
)
def test_proposed_commands_work_as_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, path: str, command: str
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "banyan").touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path.format(here=tmp_path))
    monkeypatch.setattr("sys.argv", [called.format(here=tmp_path)])
    assert invocation.proposed("ps") == f"{command} ps"
    assert invocation.proposed("ps", Path("a b")) == f"{command} ps --state 'a b'"


def test_a_token_is_in_a_file_of_its_owner_and_not_in_the_command(tmp_path: Path) -> None:
    output = instructions.joining(tmp_path, "r-1", "10.0.0.1:7443", "secret.token")
    file = tmp_path / "tokens" / "r-1"
    assert "secret" not in output and f"join 10.0.0.1:7443 --token-file {file}" in output
    assert file.read_text().strip() == "secret.token" and file.stat().st_mode & 0o777 == 0o600


def test_a_new_token_leaves_the_file_that_an_older_command_names(tmp_path: Path) -> None:
    files = [instructions.keep(tmp_path, "r-1", f"{n}.token") for n in range(3)]
    assert [file.name for file in files] == ["r-1", "r-1-2", "r-1-3"]
    assert [file.read_text().strip() for file in files] == ["0.token", "1.token", "2.token"]


RUNS = [
    rs.Run(run_id="a-12", state=rs.RUN_STATE_PAUSED, step=3),
    rs.Run(run_id="a-13"),
    rs.Run(run_id="b-1"),
]


def test_the_newest_run_is_resumed_or_the_one_that_is_named(tmp_path: Path) -> None:
    assert resume.chosen(RUNS, "", tmp_path).run_id == "a-12"
    assert resume.chosen(RUNS, "b", tmp_path).run_id == "b-1"
    with pytest.raises(InvalidInput, match="a-12, a-13; give more"):
        resume.chosen(RUNS, "a", tmp_path)
    with pytest.raises(InvalidInput, match=r"'c'.*a-12, a-13, b-1"):
        resume.chosen(RUNS, "c", tmp_path)
    with pytest.raises(InvalidInput, match="no run to resume"):
        resume.chosen([], "", tmp_path)


def test_a_run_that_is_over_is_not_resumed_and_said_to_be_over(tmp_path: Path) -> None:
    over = rs.Run(run_id="a-99", state=rs.RUN_STATE_SUCCEEDED, step=40)
    assert resume.chosen([over, *RUNS], "", tmp_path).run_id == "a-12"
    assert resume.chosen([over, *RUNS], "a-12", tmp_path).run_id == "a-12"
    with pytest.raises(
        InvalidInput, match=r"a-99 is over \(SUCCEEDED at step 40\).*runs show a-99"
    ):
        resume.chosen([over, *RUNS], "a-9", tmp_path)
    with pytest.raises(InvalidInput, match="no run to resume"):
        resume.chosen([over], "", tmp_path)
    named = resume.others([over, *RUNS], RUNS[2], tmp_path)
    assert "a-99" not in named and RUNS[2].run_id not in named.partition(";")[0]
    assert all(f"{run.run_id} (" in named for run in RUNS[:2])


def test_a_run_that_failed_is_resumed_where_it_is_named_or_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    bad = rs.Run(run_id="f-1", state=rs.RUN_STATE_FAILED, step=7)
    done = rs.Run(run_id="s-1", state=rs.RUN_STATE_SUCCEEDED)
    assert resume.chosen([bad, *RUNS], "", tmp_path).run_id == "a-12"
    assert resume.chosen([bad, *RUNS], "f", tmp_path).run_id == "f-1"
    assert resume.chosen([done, bad], "", tmp_path).run_id == "f-1"
    with pytest.raises(InvalidInput, match=r"s-1 is over \(SUCCEEDED"):
        resume.chosen([done, bad], "s", tmp_path)
    assert "f-1" not in resume.others([bad, *RUNS], RUNS[0], tmp_path)


def test_a_reader_that_has_enough_is_no_failure() -> None:
    """The command is `banyan trees export RUN | head -1`."""
    program = (
        "from banyan.cli.render.console import stream; stream('x' * 9000 for _ in range(1000))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as printing:
        assert printing.stdout is not None and printing.stderr is not None
        assert printing.stdout.readline() == b"x" * 9000 + b"\n"
        printing.stdout.close()
        assert printing.wait(30) == 0 and printing.stderr.read() == b""


def test_a_reader_that_takes_no_table_is_no_failure() -> None:
    """The command is `banyan recipes ls | head -0`."""
    command = [sys.executable, "-m", "banyan.cli", "recipes", "ls"]
    nobody, out = os.pipe()
    os.close(nobody)
    try:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(out)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_others_that_could_be_resumed_are_named(tmp_path: Path) -> None:
    assert "a-12 (PAUSED at step 3), a-13" in resume.others(RUNS, RUNS[2], tmp_path)
    assert resume.others(RUNS[:1], RUNS[0], tmp_path) == ""
    answered = type(RUNS[0]).FromString(
        RUNS[0].SerializeToString()
    )  # the same run as the gateway tells of it, moved on
    assert resume.others(RUNS[:1], answered, tmp_path) == ""


def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/trees.jsonl")

    monkeypatch.setattr(main_module, "app", full)
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: /data/trees.jsonl: No space left on device\n"


@pytest.mark.parametrize("text", ["[/b]", "a\\[/b]", "a\\[link=http://x]b", "a\\\\[red]"])
def test_an_error_quotes_what_looks_like_markup_as_it_is(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: Any) -> None:
        raise InvalidInput(f"no field {text}")

    monkeypatch.setattr(main_module, "app", refuses)
    with pytest.raises(SystemExit) as ended:
        main_module.main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: no field {text}\n"


def checkpoint(folder: Path, name: str, step: int, size: int) -> None:
    created = folder / "checkpoints" / name
    created.mkdir(parents=True)
    (created / "model.safetensors").write_bytes(b"x" * 4)
    manifest = {
        "mark": {"learner_epoch": 1, "step": step},
        "files": {"model.safetensors": {"bytes": size}},
    }
    (created / "manifest.json").write_text(json.dumps(manifest))


def test_only_a_whole_checkpoint_is_handed_on(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no checkpoint"):
        run_files.newest_checkpoint(tmp_path)
    checkpoint(tmp_path, "step-00000002-epoch-1", 2, 4)
    checkpoint(tmp_path, "step-00000003-epoch-1", 3, 9)  # torn
    checkpoint(tmp_path, ".step-00000004-epoch-1.77", 4, 4)  # what a writer has aside
    checkpoint(tmp_path, "step-00000005-epoch-1", 5, 4)
    (tmp_path / "checkpoints" / "step-00000005-epoch-1" / "manifest.json").write_text("{")
    assert run_files.newest_checkpoint(tmp_path).name == "step-00000002-epoch-1"


def test_a_run_is_shown_as_tables_with_its_evaluations_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = ["after-greedy", "before-greedy", "step-10-greedy", "step-2-greedy"]
    evals = [
        rs.EvalProgress(label=label, groups=2, done=2, scored=2, correct=1, reward_sum=1.0)
        for label in labels
    ]
    progress = rs.ReadProgressResponse(
        step=3, evals=[*evals, rs.EvalProgress(label="after-sampled", groups=2)]
    )
    created = plain_data.run(
        rs.Run(run_id="r-1", state=rs.RUN_STATE_TRAINING, folder="/f")
    ) | plain_data.progress(progress)
    show.show(
        created | {"members": 0, "nodes": [], "stats": {"leaves": 4}, "policies": [], "metrics": []}
    )
    output = capsys.readouterr().out
    result = [
        line.split()[0]
        for line in output.splitlines()
        if line.startswith(("before-", "step-", "after-"))
    ]
    assert result == [
        "before-greedy",
        "step-2-greedy",
        "step-10-greedy",
        "after-greedy",
        "after-sampled",
    ]
    assert "{" not in output and "50.0 %" in output and "nodes" not in output


def test_batches_that_were_set_aside_are_shown_with_their_cause() -> None:
    progress = rs.ReadProgressResponse(
        set_aside=[rs.SetAside(ordinal=3, cause="2 learners ended: IndexError")]
    )
    assert plain_data.progress(progress)["set_aside"] == [
        {"batch": 3, "cause": "2 learners ended: IndexError"}
    ]
