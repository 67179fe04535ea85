"""The threads of a process follow its launcher's file, once a change, whatever the file holds."""

import threading
from pathlib import Path

import torch

from services.chassis.process import cores
from services.chassis.process.cores import CoreShare


def test_a_number_is_told_once_after_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "threads" / "learner-r-0"
    share = CoreShare(file, 2)
    assert share.changed() is None
    cores.write(file, 2)
    assert share.changed() is None
    cores.write(file, 1)
    assert share.changed() == 1 and share.changed() is None
    cores.write(file, 2)
    assert share.changed() == 2
    assert [path.name for path in file.parent.iterdir()] == ["learner-r-0"]


def test_what_is_no_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "share"
    share = CoreShare(file, 2)
    for text in ("", "many", "0", "-1"):
        file.write_text(text)
        assert share.changed() is None
    file.unlink()
    assert share.changed() is None and CoreShare(None, None).changed() is None


def test_torch_computes_with_the_share_in_the_thread_that_asks(tmp_path: Path) -> None:
    file, seen = tmp_path / "share", list[int]()

    def work() -> None:
        torch.set_num_threads(1)
        settle = cores.follow(CoreShare(file, 1))
        settle()
        seen.append(torch.get_num_threads())
        cores.write(file, 2)
        settle()
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30.0)
    torch.set_num_threads(before)
    assert seen == [1, 2]
