"""Links of pages to files of the repository that lie outside docs: such files become pages, too.

Documents are written to be read in the repository as well, so their links are paths there. On the
site a document keeps its place, and a file outside docs stands under `source/`: Markdown as it is,
any other as a page that shows its text.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
SOURCE = "source/"
NOTEBOOK = ".ipynb"  # whose page the site shows; the file lies beside it
_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE = re.compile(r"(`+[^`]*`+)")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_PAIR = re.compile(r"\]( ?)\[")
_BULLET = re.compile(r"([-*+]|\d+\.) ")


def page_of(path: str) -> str:
    """Return the page of the site that shows a file or folder of the repository.

    path: path from the repository's root.
    """
    if path.startswith(DOCS):
        own = path.removeprefix(DOCS)
        if path.endswith(NOTEBOOK):
            return f"{own.removesuffix(NOTEBOOK)}.md"
        return f"{own}/README.md" if (ROOT / path).is_dir() else own
    if (ROOT / path).is_dir():
        return f"{SOURCE}{path}/README.md"
    return f"{SOURCE}{path}" if path.endswith(".md") else f"{SOURCE}{path}.md"


def target(origin: str, link: str) -> tuple[str, str] | None:
    """Return the file of the repository that a link names, and its anchor with #; None for others.

    origin: path of the document with the link, from the repository's root.
    """
    path, mark, anchor = link.partition("#")
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return None
    named = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    return named, mark + anchor


def rewritten(markdown: str, origin: str) -> str:
    """Return a document whose links lead to pages of the site."""
    own = page_of(origin)

    def moved(match: re.Match[str]) -> str:
        found = target(origin, match[2])
        if found is None or found[0].startswith("..") or not (ROOT / found[0]).exists():
            return match[0]  # left to the builder, which names a dead one
        there = posixpath.relpath(page_of(found[0]), posixpath.dirname(own) or ".")
        return f"{match[1]}{there}{found[1]}{match[3]}"

    return _in_prose(markdown, lambda text: _LINK.sub(moved, text))


def named(markdown: str, origin: str) -> set[str]:
    """Return the files of the repository that a document links to."""
    found: set[str] = set()

    def note(text: str) -> str:
        for match in _LINK.finditer(text):
            if (there := target(origin, match[2])) and (ROOT / there[0]).exists():
                found.add(there[0])
        return text

    _in_prose(markdown, note)
    return found


def bracketed(markdown: str) -> str:
    """Return a document in which no two brackets, such as indices, are taken for a reference."""
    return _in_prose(markdown, lambda text: _PAIR.sub(r"]\1\[", text))


def spaced(markdown: str) -> str:
    """Return a document with an empty line before each list, which the builder's Markdown needs."""
    lines: list[str] = []
    for line, prose in _lines(markdown):
        before = lines[-1] if lines else ""
        begins = prose and _BULLET.match(line) and before.strip()
        if begins and not _BULLET.match(before) and not before.startswith(" "):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def shown(path: str) -> str:
    """Return the page of a file that is no document, or of a folder."""
    file, head = ROOT / path, "---\nsearch:\n  exclude: true\n---\n\n"
    if file.is_dir():
        entries = sorted(p for p in file.iterdir() if not p.name.startswith(("_", ".")))
        rows = "\n".join(f"- `{entry.name}`" for entry in entries)
        return f"{head}# {path}\n\n{rows}\n"
    kind = {".py": "python", ".yaml": "yaml", ".json": "json", ".proto": "protobuf"}
    text = file.read_text(encoding="utf-8")
    return f"{head}# {path}\n\n````{kind.get(file.suffix, 'text')}\n{text.rstrip()}\n````\n"


def _in_prose(markdown: str, change: Callable[[str], str]) -> str:
    """Return a document whose texts outside of code are changed."""
    return "\n".join(
        "".join(change(part) if not part.startswith("`") else part for part in _CODE.split(line))
        if prose
        else line
        for line, prose in _lines(markdown)
    )


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is outside of fenced code."""
    fenced = False
    for line in markdown.split("\n"):
        fence = _FENCE.match(line) is not None
        yield line, not fenced and not fence
        fenced ^= fence
