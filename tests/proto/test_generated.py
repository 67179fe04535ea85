"""The generated code is the output of proto/generate.sh, and the contracts pass their lint."""

import filecmp
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    (tmp_path / "banyan" / "v1").mkdir(parents=True)
    subprocess.run([ROOT / "proto" / "generate.sh", str(tmp_path)], check=True, timeout=120)
    created = sorted(p.name for p in (tmp_path / "banyan" / "v1").iterdir())
    kept = sorted(p.name for p in (ROOT / "banyan" / "v1").iterdir() if p.name != "__pycache__")
    assert created == kept
    _, differing, failed = filecmp.cmpfiles(
        tmp_path / "banyan" / "v1", ROOT / "banyan" / "v1", created, shallow=False
    )
    assert not differing and not failed, f"run make proto: {differing}"


def test_the_contracts_pass_their_lint() -> None:
    buf = ROOT / ".venv" / "bin" / "buf"
    result = subprocess.run(
        [buf, "lint"], cwd=ROOT / "proto", capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr
