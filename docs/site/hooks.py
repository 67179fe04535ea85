"""Hooks of the site's builder (mkdocs.yml): pages out of files outside docs, and the navigation."""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from docs.site import links, notebook_page

# Documents that stand in the navigation once they are written.
_LATER = ("clients.md", "http.md", "notebook.md", "page.md")
_FOLDERS = ("adr", "benchmarks", "benchmarks/history")
"""Folders whose documents are listed by themselves, behind their README."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: the documents of some folders, and those that are there by now."""
    config.nav = [_completed(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages of notebooks, and of files outside docs that a document or such a page names."""
    for notebook in [f for f in files if f.src_uri.endswith(links.NOTEBOOK)]:
        _add_notebook(notebook, files, config)
    documents = [f for f in files if f.src_uri.endswith(".md")]
    waiting = [(links.DOCS + f.src_uri, f.content_string) for f in documents]
    known = {origin for origin, _ in waiting}
    while waiting:
        origin, text = waiting.pop()
        for path in links.named(text, origin) - known:
            known.add(path)
            if path.startswith(links.DOCS):
                continue
            content = _content(path)
            page, aside = links.page_of(path), InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, page, content=content, inclusion=aside))
            if (readme := _document(path)) is not None:
                waiting.append((readme, content))
    return files


def _add_notebook(notebook: File, files: Files, config: MkDocsConfig) -> None:
    """Add the page of a notebook, and its pictures, beside the notebook itself."""
    name = notebook.src_uri.removesuffix(links.NOTEBOOK)
    made = notebook_page.page(json.loads(notebook.content_string), name.rpartition("/")[2])
    files.append(File.generated(config, f"{name}.md", content=made.markdown))
    folder = f"{name.rpartition('/')[0]}/" if "/" in name else ""
    for picture, text in made.pictures.items():
        files.append(File.generated(config, f"{folder}{picture}", content=text))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a document to pages of the site."""
    uri = page.file.src_uri
    origin = uri.removeprefix(links.SOURCE) if uri.startswith(links.SOURCE) else links.DOCS + uri
    return links.spaced(links.bracketed(links.rewritten(markdown, origin)))


def _content(path: str) -> str:
    document = _document(path)
    return (links.ROOT / document).read_text("utf-8") if document else links.shown(path)


def _document(path: str) -> str | None:
    """Return the document that a path names: a folder's README, or itself; None for other files."""
    if (links.ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if path.endswith(".md") and (links.ROOT / path).is_file() else None


def _completed(entry: Any, docs: Path) -> Any:
    """Return an entry of the navigation with the documents of the folders that it names."""
    if isinstance(entry, dict):
        return {title: _completed(below, docs) for title, below in entry.items()}
    if isinstance(entry, list):
        whole = [_completed(below, docs) for below in entry if _is_there(below, docs)]
        return [one for below in whole for one in (below if isinstance(below, list) else [below])]
    if entry.rstrip("/") in _FOLDERS:
        folder = docs / entry
        names = sorted(f.name for f in folder.glob("*.md") if f.name != "README.md")
        first = ["README.md"] if (folder / "README.md").exists() else []
        return [f"{entry.rstrip('/')}/{name}" for name in [*first, *names]]
    return entry


def _is_there(entry: Any, docs: Path) -> bool:
    name = next(iter(entry.values())) if isinstance(entry, dict) else entry
    return name not in _LATER or any(
        (docs / name).with_suffix(kind).exists() for kind in (".md", links.NOTEBOOK)
    )
