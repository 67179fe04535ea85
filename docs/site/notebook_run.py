"""Execution of notebooks: `python -m docs.site.notebook_run FILE` writes their outputs anew.

A notebook runs in a kernel of Jupyter, in an empty folder. What differs from run to run for no
reason that a reader could use is left out: times of cells, progress bars on stderr, and the lines
that only say that a slow machine is still at it.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from docs.site import notebook_page

ROOT = Path(__file__).resolve().parents[2]
_FORMAT: Any = nbformat  # its functions have no types
CELL_S = 900  # a cell that takes longer has failed
_WAITING = re.compile(
    r"^\[ *[\d.]+ s\] (?:starting|loading the model|evaluating \w+: |step \d+ of \d+: |training$)"
    r".*\n?",
    re.MULTILINE,
)
_PICTURES = (
    "--InlineBackend.figure_formats={'svg'}",
    "--InlineBackend.rc={'svg.fonttype': 'none', 'svg.hashsalt': 'banyan'}",
    "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Date': None}}",
)


def executed(notebook: dict[str, Any], cell_s: int = CELL_S) -> dict[str, Any]:
    """Return a notebook with the outputs of its code, run in a new kernel and an empty folder.

    cell_s: most seconds of a cell

    Raise nbclient's CellExecutionError if a cell raises, CellTimeoutError if one takes too long.
    """
    made = _FORMAT.reads(json.dumps(notebook), as_version=4)
    with tempfile.TemporaryDirectory(prefix="banyan-notebook-") as folder:
        client = NotebookClient(
            made,
            timeout=cell_s,
            kernel_name="python3",
            startup_timeout=CELL_S,
            resources={"metadata": {"path": folder}},
            extra_arguments=list(_PICTURES),
            record_timing=False,
        )
        known = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(known)}
        env.pop("BANYAN_STATE", None)  # the notebook's own folder
        # As a reader has it whose environment is active: commands are proposed by their name.
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
        client.execute(env=env)
    plain: dict[str, Any] = json.loads(_FORMAT.writes(made))
    for cell in plain["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = _kept(cell["outputs"], folder)
    plain["metadata"].pop("language_info", None)  # the version of this Python
    notebook_page.mark(plain)
    return plain


def _kept(outputs: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return outputs without what differs for no reason; lines that were printed stand together.

    folder: in which the notebook ran
    """
    found: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] != "stream":
            found.append(output)
        elif output["name"] == "stdout":
            text = _WAITING.sub("", "".join(output["text"]).replace(f"{folder}{os.sep}", ""))
            if text and found and found[-1]["output_type"] == "stream":
                found[-1]["text"] += text.splitlines(keepends=True)
            elif text:
                found.append({**output, "text": text.splitlines(keepends=True)})
    return found


def read(path: Path) -> dict[str, Any]:
    """Return a notebook's content."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def main(paths: list[str]) -> None:
    """Execute notebooks and write them back."""
    for path in map(Path, paths):
        made = executed(read(path))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path}: {len(made['cells'])} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
