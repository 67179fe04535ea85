"""Complete and broken model folders: each fault is named with its file."""

import json
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from services.chassis import models
from tests.cli.folders import safetensors, whole_model


def sharded(folder: Path) -> Path:
    """Split the weights of a folder into two shards with an index."""
    folder.mkdir(exist_ok=True)
    model = Path(whole_model(folder))
    (model / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        (model / name).write_bytes(safetensors())
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model


def test_whole_folders_are_taken(tmp_path: Path) -> None:
    for made in (Path(whole_model(tmp_path)), sharded(tmp_path / "s")):
        assert models.resolve(str(made), tokenizer=True) == made


def test_a_tokenizer_is_asked_for_only_where_text_is_sampled(tmp_path: Path) -> None:
    model = Path(whole_model(tmp_path))
    (model / "tokenizer.json").unlink()
    models.resolve(str(model))
    with pytest.raises(InvalidInput, match="has no tokenizer"):
        models.resolve(str(model), tokenizer=True)


def test_missing_and_torn_shards_are_named(tmp_path: Path) -> None:
    model = sharded(tmp_path)
    second = model / "model-00002-of-00002.safetensors"
    second.write_bytes(safetensors()[:40])
    with pytest.raises(InvalidInput, match=r"model-00002-of-00002\.safetensors is cut off"):
        models.resolve(str(model))
    second.unlink()
    with pytest.raises(InvalidInput, match=r"lacks model-00002-of-00002\.safetensors"):
        models.resolve(str(model))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no safetensors file"),
        (b"\xff" * 64, "is no safetensors file"),
        (safetensors() + b"x", "is too long"),
        (b"\x02\0\0\0\0\0\0\0{}", "holds no tensor"),
        (b"\x04\0\0\0\0\0\0\0{abc", "has a header that cannot be read"),
    ],
)
def test_weights_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    model = Path(whole_model(tmp_path))
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidInput, match=f"model.safetensors {words}"):
        models.resolve(str(model))


@pytest.mark.parametrize("vocabulary", [{"a": 0, "b": 7}, [["a", -1.0]] * 8])
@pytest.mark.parametrize("config", [{"vocab_size": 7}, {"text_config": {"vocab_size": 7}}])
def test_a_tokenizer_of_another_model_is_refused(
    tmp_path: Path, vocabulary: object, config: dict[str, object]
) -> None:
    folder = sharded(tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    with pytest.raises(InvalidInput, match="its tokenizer's ids go up to 7, and the model has 7"):
        models.resolve(str(folder), tokenizer=True)
    models.resolve(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    models.resolve(str(folder), tokenizer=True)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("org/name", ("org/name", None)),
        ("org/name@main", ("org/name", "main")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
    ],
)
def test_a_model_of_the_hub_is_fetched_at_its_revision(
    name: str,
    asked: tuple[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, str | None]] = []
    folder = whole_model(tmp_path)

    def download(repository: str, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((repository, revision))
        return folder

    def cached(repository: str, file: str, revision: str | None) -> str:
        calls.append((repository, revision))
        return f"{folder}/{file}"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    assert models.resolve(name) == models.present(name) == Path(folder)
    assert calls == [asked, asked]


def test_an_empty_revision_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'org/name@' names no revision behind the @"):
        models.resolve("org/name@")
