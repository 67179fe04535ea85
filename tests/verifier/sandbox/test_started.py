"""The start of scoring processes: wherever Banyan lies, and whatever else has its names."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from services.verifier.preview.probe import probe
from services.verifier.sandbox import worker
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.worker import ScorerSpec, Worker

ROOT = Path(__file__).parents[3]
SCORE = """\
import asyncio, sys
from banyan import registry
from services.verifier.preview.probe import describe_jail
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.worker import ScorerSpec, Worker

async def main():
    sys.path.insert(0, sys.argv[1])
    child = await Worker.start(ScorerSpec("own_scorer:score", {}, unconfined=True), Limits())
    print((await child.score({"completion": "abc", "row": {}}))["value"])
    await child.close()
    print(await describe_jail())

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter whose installed packages include some of our names, but not ours."""
    folder = tmp_path_factory.mktemp("foreign")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    # Links of ours are not followed: only the packages that we need are found there.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("services", "methods"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    return python


def test_a_scorer_is_found_by_an_interpreter_that_has_foreign_packages_of_our_names(
    foreign: Path, tmp_path: Path
) -> None:
    """And one that finds Banyan by PYTHONPATH alone, of which a scoring process knows nothing."""
    (tmp_path / "own_scorer.py").write_text("def score(completion, **row): return len(completion)")
    ended = subprocess.run(
        [foreign, "-P", "-c", SCORE, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    value, jail = ended.stdout.split("\n", 1)
    assert float(value) == 3.0 and jail.strip(), ended.stderr


def test_a_scoring_process_imports_neither_numpy_nor_asyncio() -> None:
    """Each takes as long as all else, and would have to be in every interpreter that scores."""
    asked = (
        "import sys, services.verifier.sandbox.child;"
        " print(sorted({'numpy', 'asyncio', 'importlib.metadata'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", asked], cwd=ROOT, text=True) == "[]\n"


async def test_an_interpreter_of_a_users_own_needs_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_scorer.py").write_text("def score(completion, **row): return len(completion)")
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    spec = ScorerSpec(
        "own_scorer:score", {}, unconfined=True, python=str(folder / "bin" / "python")
    )
    child = await Worker.start(spec, Limits())
    assert (await child.score({"completion": "abc", "row": {}}))["value"] == 3.0
    await child.close()


async def test_a_process_that_cannot_start_is_not_the_scorers_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = (sys.executable, "-I", "-c", "raise SystemExit(1)")
    monkeypatch.setattr(worker, "OURS_ISOLATED", broken)
    with pytest.raises(InvalidInput, match=r"scorers cannot run: .* status 1 before it read") as no:
        await probe("own_scorer:score", {}, None)
    assert "its module" not in str(no.value)
