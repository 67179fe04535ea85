"""Paths that mean a data set of the hub, and how parts that take paths treat them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.cli.sft import rows as sft_rows
from banyan.cli.train.file_locations import located
from banyan.errors import InvalidInput
from banyan.recipe import Recipe, Task
from banyan.recipe.hub_dataset import HubDataset, hub_form, parse
from services.gateway.runs.create import with_commit
from services.gateway.tasks.sources import hub
from services.verifier.sandbox import worker

WORD = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)


def task(path: str) -> Task:
    return Task(name="file", path=path, reward="rewards:exact")


def recipe(path: str) -> Recipe:
    return Recipe(name="r", model="org/name", task=task(path))


@pytest.mark.parametrize(
    ("path", "dataset"),
    [
        ("hf://openai/gsm8k", HubDataset("openai/gsm8k")),
        ("hf://openai/gsm8k/main", HubDataset("openai/gsm8k", config="main")),
        ("hf://openai/gsm8k:test", HubDataset("openai/gsm8k", split="test")),
        ("hf://a/b@v1.0", HubDataset("a/b", revision="v1.0")),
        ("hf://a/b@v1/c d+e:x", HubDataset("a/b", revision="v1", config="c d+e", split="x")),
    ],
)
def test_a_path_names_a_data_set(path: str, dataset: HubDataset) -> None:
    assert parse(path) == dataset
    assert task(path).files == (path,)


@given(repo=st.tuples(WORD, WORD), revision=WORD | st.just(""), config=WORD | st.just(""))
def test_a_data_set_is_written_as_it_is_read(
    repo: tuple[str, str], revision: str, config: str
) -> None:
    dataset = HubDataset("/".join(repo), revision, config, "test")
    if repo[0] != "datasets":
        assert parse(str(dataset)) == dataset


REPO = ["hf://", "hf://gsm8k", "hf://a/b/c/d", "hf://../b", "hf://-a/b", "hf:///a/b"]
PARTS = ["hf://a/b:", "hf://a/b:train[:9]", "hf://a/b@", "hf://a/b?x", "hf://datasets/a/b"]


@pytest.mark.parametrize("path", [*REPO, *PARTS])
def test_another_path_is_refused_with_the_form(path: str) -> None:
    with pytest.raises(ValueError, match=r"write hf://ORG/NAME\[@REVISION\]\[/CONFIG\]\[:SPLIT\]"):
        task(path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("openai/gsm8k", "; if a data set of the hub is meant, write hf://openai/gsm8k"),
        ("https://huggingface.co/datasets/openai/gsm8k", "write hf://openai/gsm8k"),
        ("huggingface.co/datasets/openai/gsm8k/tree/main", "write hf://openai/gsm8k"),
        ("data/rows.jsonl", ""),
        ("rows.csv", ""),
        ("a/b/c", ""),
    ],
)
def test_a_path_that_seems_to_mean_one_is_told_the_form(path: str, said: str) -> None:
    assert hub_form(path).endswith(said) and bool(hub_form(path)) == bool(said)
    with pytest.raises(InvalidInput) as refused:
        located(recipe(path), Path("r.yaml"))
    assert ("hf://" in str(refused.value)) == bool(said)


def test_it_lies_beside_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:" / "org" / "rows").mkdir(parents=True)
    assert located(recipe("hf://org/rows"), tmp_path / "r.yaml").task.path == "hf://org/rows"


def test_a_run_gets_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fixed", lambda dataset: dataset.at("a" * 40, "main"))
    fixed = with_commit(recipe("hf://org/rows:test"))
    assert fixed.task.path == f"hf://org/rows@{'a' * 40}/main:test"
    assert with_commit(recipe("rows.csv")) == recipe("rows.csv")


def test_a_warm_start_takes_files_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no such file; name one of .* save one first"):
        sft_rows.read(Path("hf://org/rows"), recipe("hf://org/rows"))
    (tmp_path / "rows.csv").write_text("prompt,completion\n2 + 2?,4\n")
    (row,) = sft_rows.read(tmp_path / "rows.csv", recipe("hf://org/rows"))
    assert (row.prompt[0]["content"], row.turns[0]["content"]) == ("2 + 2?", "4")


def test_no_scorer_may_read_the_caches_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_XET_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    withheld = set(worker._locations(["hf://org/rows"]))
    assert {str(tmp_path / "hf" / name) for name in ("hub", "datasets", "xet")} <= withheld
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "elsewhere"))
    assert str(tmp_path / "elsewhere") in set(worker._locations(["hf://org/rows"]))
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hub_folder = str(tmp_path / "cache" / "huggingface" / "hub")
    assert hub_folder in set(worker._locations(["hf://org/rows"]))


@pytest.mark.parametrize(
    ("revision", "fixed"),
    [("a1" * 20, True), ("a1" * 20 + "0", False), ("a1" * 20 + "-x", False), ("A1" * 20, False)],
)
def test_a_commit_alone_is_fixed(revision: str, fixed: bool) -> None:
    """A branch or a tag may begin with a commit's name."""
    assert parse(f"hf://a/b@{revision}").is_fixed == fixed
