"""Locks: every package has an exact version and digests of its files."""

import json
from pathlib import Path

import pytest

from banyan.runtime import install, locked

ROOT = Path(__file__).parents[3]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
A, B, C = (letter * 64 for letter in "abc")
RESOLVED = f"one==1 \\\n    --hash=sha256:{B} \\\n    --hash=sha256:{A}\nTwo.x[y]==2+cpu \\\n"
RESOLVED += f"    --hash=sha256:{A}\n"


def report(**digests: str) -> dict[str, object]:
    return {
        "install": [
            {
                "metadata": {"name": name},
                "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
            }
            for name, digest in digests.items()
        ]
    }


def test_digests_of_the_index_or_of_a_build_that_it_has_not_are_written() -> None:
    text = locked.hashed("# why\none==1\ntwo-x==2+cpu\n", RESOLVED, report(one=A, two_X=C))
    assert text.splitlines() == [
        "# why",
        "one==1 \\",
        f"    --hash=sha256:{A} \\",
        f"    --hash=sha256:{B}",
        "two-x==2+cpu \\",
        f"    --hash=sha256:{C}",
    ]
    assert locked.hashed(text, RESOLVED, report(one=A, two_x=C)) == text, (
        "written again it is the same"
    )
    assert locked.versions(text) == {"one": "1", "two-x": "2+cpu"}
    assert locked.digests(text) == {"one": {A, B}, "two-x": {C}}


def test_a_package_without_a_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="no file of three==3 is known"):
        locked.hashed("three==3\n", RESOLVED, report(one=A))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_digests(lock: Path) -> None:
    text = lock.read_text()
    digests = locked.digests(text)
    assert digests and set(digests) == set(locked.versions(text))
    assert [name for name, found in digests.items() if not found] == []


def test_pip_checks_the_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def pip(environment: Path, what: str, wanted: int, arguments: list[str]) -> None:
        if "model" in what:
            asked.append(Path(arguments[-1]).read_text())

    monkeypatch.setattr(install, "pip", pip)
    monkeypatch.setattr(install, "compile_modules", lambda environment: None)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    install.install(tmp_path)
    assert asked == [f"{install.MODEL} --hash=sha256:{install.MODEL_SHA256}\n"]


def test_the_report_of_pip_is_read_as_pip_writes_it() -> None:
    """The fields that are read are those of pip's installation report, version 1."""
    text = json.dumps(report(one=A) | {"version": "1", "pip_version": "23.2.1"})
    assert locked.hashed("one==1\n", "", json.loads(text)).count("--hash") == 1
