"""Settings: typed, from the environment, failing by name; and models that cannot be found."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from services.chassis import models
from services.chassis.process.settings import Settings, read


@dataclass(frozen=True, kw_only=True)
class Mine(Settings):
    run: str
    threads: int = 1
    read_only: bool = False
    minutes: float | None = None


def test_fields_are_read_and_typed() -> None:
    environ = {
        "BANYAN_RUN": "r",
        "BANYAN_THREADS": "3",
        "BANYAN_READ_ONLY": "1",
        "BANYAN_MINUTES": "",
        "BANYAN_STATE": "/x",
    }
    mine = read(Mine, environ)
    assert (mine.run, mine.threads, mine.read_only, mine.minutes, mine.state) == (
        "r",
        3,
        True,
        None,
        Path("/x"),
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "BANYAN_RUN is not set"),
        ({"BANYAN_RUN": "r", "BANYAN_THREADS": "two"}, "BANYAN_THREADS='two' must be of type int"),
        ({"BANYAN_RUN": "r", "BANYAN_READ_ONLY": "maybe"}, "must be 1 or 0"),
    ],
)
def test_what_is_wrong_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(Mine, environ)


def test_models_that_are_not_there_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=r"neither SmolLM2"):
        models.resolve("nowhere")
    with pytest.raises(InvalidInput, match=r"has no config\.json"):
        models.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InvalidInput, match="has no weights"):
        models.resolve(str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidInput, match=r"cannot get model .org/name. from the hub"):
        models.resolve("org/name")
