"""The site is built without a warning, and read without a dead link or another host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import checked

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_has_no_dead_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert checked.problems(tmp_path) == []
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "cli.html", "api/plugins.html", "source/CHANGELOG.html"} <= pages
    assert "source/recipes/treepo.yaml.html" in pages, "files that documents name are shown"
    assert not [page for page in pages if page.startswith("site/")], "the builder is no document"
    shown = (tmp_path / "api" / "plugins.html").read_text()
    assert 'id="banyan.plugins.generate.TreePolicy"' in shown
    assert "Decision of a tree policy" in shown
