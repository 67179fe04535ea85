"""Folders that only their owner may enter, wherever they are."""

import os
from pathlib import Path

import pytest
import torch

from banyan.errors import InvalidInput
from services.chassis.process import private_files
from services.chassis.weights import file


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_is_its_owners_when_made_and_when_found(tmp_path) -> None:
    assert _mode(private_files.folder(tmp_path / "a" / "b")) == 0o700
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o777)
    assert _mode(private_files.folder(tmp_path / "c")) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_another_user_put_where_all_may_write_is_not_used(tmp_path, kind) -> None:
    """As in /dev/shm and /tmp, where the name is known in advance."""
    tmp_path.chmod(0o1777)
    there = tmp_path / "banyan-run"
    if kind == "folder":
        there.mkdir()
    else:
        (tmp_path / "mine").mkdir()
        there.symlink_to(tmp_path / "mine")
    os.chown(there, 65534, 65534, follow_symlinks=False)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        private_files.folder(there)


def test_weights_are_their_owners(tmp_path) -> None:
    (tmp_path / "w").mkdir(mode=0o755)
    file.write(tmp_path / "w", "policy-1-0", {"a": torch.zeros(2)}, 1, 0)
    assert _mode(tmp_path / "w") == 0o700
