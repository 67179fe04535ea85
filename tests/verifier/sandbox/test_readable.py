"""The files of a module's folder that a score may read, by name, rights and place."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from services.verifier.sandbox.confinement import readable
from services.verifier.settings import Settings


def module(monkeypatch: pytest.MonkeyPatch, name: str, file: Path, package: bool = False) -> None:
    """Load a module of a file that exists."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    made = ModuleType(name)
    made.__file__ = str(file)
    if package:
        made.__path__ = [str(file.parent)]
    monkeypatch.setitem(sys.modules, name, made)


def below(folder: Path, name: str, withheld: tuple[str, ...] = ()) -> set[str]:
    """Return the readable paths in a folder, relative to it; "." for all of it."""
    found = readable.of((name,), (), withheld)
    return {
        str(Path(path).relative_to(folder))
        for path in found.paths
        if Path(path).is_relative_to(folder)
    }


def put(folder: Path, *names: str, mode: int = 0o644) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
        (folder / name).chmod(mode)
    for path in (p for p in folder.rglob("*") if p.is_dir()):
        path.chmod(0o755)


def test_a_folder_without_secrets_is_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "own_rewards", tmp_path / "own_rewards.py")
    put(tmp_path, "data/words.txt", "helper.py")
    assert below(tmp_path, "own_rewards") == {"."}


def test_a_folder_with_secrets_is_named_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "own_rewards", tmp_path / "own_rewards.py")
    put(
        tmp_path,
        ".env",
        ".git/config",
        "prod.env",
        "tls.key",
        "rows.jsonl",
        "run/logs/x",
        "data/words.txt",
        "data/.x",
        "b.py",
    )
    put(tmp_path, "clean/one.txt", "clean/two.txt")
    put(tmp_path, "mine.txt", mode=0o600)
    put(tmp_path, "private_code.py", mode=0o600)
    withheld = (str(tmp_path / "rows.jsonl"), str(tmp_path / "run"))
    expected = {"own_rewards.py", "b.py", "private_code.py", "data/words.txt", "clean"}
    assert below(tmp_path, "own_rewards", withheld) == expected
    assert readable.of(("own_rewards",), (), withheld).listable == (str(tmp_path),)


@pytest.mark.parametrize(
    "name", ["a.env", "a.pem", "a.key", "a.p12", "a.pfx", "a.creds", "a.nk", "a.jwt"]
)
def test_files_named_like_keys_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module(monkeypatch, "own_rewards", tmp_path / "own_rewards.py")
    put(tmp_path, name, "a.txt")
    assert below(tmp_path, "own_rewards") == {"own_rewards.py", "a.txt"}


def test_a_folder_whose_name_begins_like_the_modules_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "own_rewards", tmp_path / "p" / "own_rewards.py")
    module(monkeypatch, "other_module", tmp_path / "p2" / "other_module.py")
    put(tmp_path, "p2/beside.py")
    assert below(tmp_path, "own_rewards") == {"p", "p2/other_module.py"}


def test_a_scorer_in_a_package_reads_its_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "own_package", tmp_path / "own_package" / "__init__.py", package=True)
    module(
        monkeypatch,
        "own_package.inner",
        tmp_path / "own_package" / "inner" / "__init__.py",
        package=True,
    )
    module(
        monkeypatch, "own_package.inner.rewards", tmp_path / "own_package" / "inner" / "rewards.py"
    )
    module(monkeypatch, "other_module", tmp_path / "lib" / "other_module.py")
    put(tmp_path, "lib/beside.py", "rows.jsonl", "own_package/data.txt")
    assert below(tmp_path, "own_package.inner.rewards") == {"own_package", "lib/other_module.py"}


def test_a_link_is_followed_to_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a mounted ConfigMap: files are links into a hidden folder."""
    module(monkeypatch, "own_rewards", tmp_path / "m" / "..data" / "own_rewards.py")
    put(tmp_path, "m/..data/helper.py", "m/..data/secret.txt", "elsewhere.txt")
    put(tmp_path, "withheld.py")
    for name in ("own_rewards.py", "helper.py", "secret.txt"):
        (tmp_path / "m" / name).symlink_to(f"..data/{name}")
    (tmp_path / "m" / "rows.py").symlink_to(tmp_path / "withheld.py")
    (tmp_path / "m" / "far.txt").symlink_to(tmp_path / "elsewhere.txt")
    sys.modules["own_rewards"].__file__ = str(tmp_path / "m" / "own_rewards.py")
    found = below(tmp_path, "own_rewards", (str(tmp_path / "withheld.py"),))
    assert found == {"m/own_rewards.py", "m/helper.py"}


def test_of_a_folder_with_too_much_in_it_only_modules_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "MOST", 20)
    module(monkeypatch, "own_rewards", tmp_path / "own_rewards.py")
    put(tmp_path, "a.txt", *(f"pictures/{number}.txt" for number in range(40)))
    assert below(tmp_path, "own_rewards") == {"own_rewards.py"}
    notices = readable.of(("own_rewards",), (), ()).notices
    assert any(
        f"{tmp_path} holds more than 20 entries" in one and "BANYAN_SANDBOX_READ" in one
        for one in notices
    )


def test_what_the_operator_names_is_read_as_it_is(tmp_path: Path) -> None:
    put(tmp_path, ".env")
    assert str(tmp_path) in readable.of((), [str(tmp_path), str(tmp_path / "absent")], ()).paths
    assert str(tmp_path / "absent") not in readable.of((), [str(tmp_path / "absent")], ()).paths


def test_no_folder_is_readable_because_it_is_on_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "x.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert below(tmp_path, "none") == set()


def test_a_module_without_a_place_opens_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of torch.classes is "_classes.py": it must open no folder, not even torch's."""
    module(monkeypatch, "own_package", tmp_path / "own_package" / "__init__.py", package=True)
    known = [str(tmp_path / "own_package")]
    odd = ModuleType("own_package.odd")
    odd.__file__ = "_odd.py"
    loaded = {"own_package": sys.modules["own_package"], "own_package.odd": odd}
    assert readable.imported((), loaded, known) == ([], [])


def test_what_the_service_keeps_is_withheld_wherever_a_child_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = Settings(
        secret_file="secret",
        nats_creds="/etc/creds",
        state=Path("kept"),
        allow_unconfined_scorers=True,
    )
    assert given.limits.withheld == (str(tmp_path / "secret"), "/etc/creds", str(tmp_path / "kept"))
    assert given.limits.unconfined and not Settings().limits.unconfined
