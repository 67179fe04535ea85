"""A state folder of an earlier run, and its store."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import banyan
from tests.system.test_made_before import STORED


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made-before")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder / "state"


@pytest.fixture(scope="session")
def store(state: Path) -> Iterator[banyan.Store]:
    with banyan.open(state) as opened:
        yield opened
