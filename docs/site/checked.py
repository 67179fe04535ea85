"""Checks of the built site: dead links and anchors, and what a page would load from elsewhere.

`python -m docs.site.checked FOLDER` prints what is wrong; exit status 1 if anything is.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_FOUND = "404.html"  # its links begin at a server's root, wherever it is shown
_LOADED = ("src", "data", "poster")
_STYLE = re.compile(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)")


class _Page(HTMLParser):
    """Page of the site.

    anchors: names that a link may point to
    links: where its links lead
    loads: what a browser fetches to show it
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what an element names."""
        values = {key: value for key, value in attrs if value is not None}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and "href" in values:
            self.loads.append(values["href"])
        self.loads += [values[key] for key in _LOADED if key in values]

    def has(self, fragment: str) -> bool:
        """Return whether a link may name this part of the page."""
        return unquote(fragment) in self.anchors


def problems(folder: Path) -> list[str]:
    """Return what is wrong with a site, a line each."""
    root = folder.resolve()
    pages = {file: _Page(file.read_text("utf-8")) for file in sorted(root.rglob("*.html"))}
    found = [f"{folder} holds no page"] if not pages else []
    for file, page in pages.items():
        own = file.relative_to(root).as_posix()
        found += [f"{own}: loads {url} from elsewhere" for url in page.loads if _foreign(url)]
        if own != NOT_FOUND:
            found += [f"{own}: {what}" for what in _dead(file, page, pages)]
    for file in sorted(root.rglob("*.css")):
        for match in _STYLE.finditer(file.read_text("utf-8")):
            if _foreign(url := match[1] or match[2]):
                found.append(f"{file.relative_to(root)}: loads {url} from elsewhere")
    return found


def _foreign(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _dead(file: Path, page: _Page, pages: Mapping[Path, _Page]) -> Iterator[str]:
    for link in dict.fromkeys([*page.links, *page.loads]):
        parts = urlsplit(link)
        if _foreign(link) or parts.scheme:
            continue
        there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
        if not there.exists():
            yield f"{link} leads nowhere"
        elif there in pages and parts.fragment and not pages[there].has(parts.fragment):
            yield f"{link} names no anchor of that page"


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    sys.exit("\n".join(wrong) if wrong else 0)
