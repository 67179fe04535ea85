"""The page of an executed notebook: its texts, its code, and what that printed and drew. Pure.

A notebook keeps the digest of the code that its outputs are of, so that a test can tell outputs of
other code.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

_KEY = "banyan"
_SVG, _TEXT = "image/svg+xml", "text/plain"


@dataclass(frozen=True, slots=True)
class Page:
    """Page of a notebook, with the pictures that it shows by name."""

    markdown: str
    pictures: Mapping[str, str] = field(default_factory=dict)


def digest(notebook: Mapping[str, Any]) -> str:
    """Return the digest of a notebook's code."""
    code = [_joined(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def mark(notebook: dict[str, Any]) -> None:
    """Note in a notebook that its outputs are of the code that it has."""
    notebook["metadata"][_KEY] = {"outputs_of": digest(notebook)}


def is_current(notebook: Mapping[str, Any]) -> bool:
    """Return whether a notebook's outputs are of the code that it has."""
    known = notebook["metadata"].get(_KEY, {})
    return bool(known.get("outputs_of") == digest(notebook))


def page(notebook: Mapping[str, Any], name: str) -> Page:
    """Return the page of a notebook. Raise ValueError for an output that a page cannot show.

    name: of the notebook's file, without its ending
    """
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for cell in notebook["cells"]:
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(_shown(output, name, pictures))
    link = f'<a href="{name}.ipynb" download>Download this page as a notebook for Jupyter.</a>'
    return Page("\n\n".join([*parts, link]) + "\n", pictures)


def _shown(output: Mapping[str, Any], name: str, pictures: dict[str, str]) -> str:
    if output["output_type"] == "stream":
        return _block(_joined(output["text"]))
    data = output.get("data", {})
    if _SVG in data:
        picture = f"{name}-{len(pictures) + 1}.svg"
        pictures[picture] = _joined(data[_SVG])
        return f'<img src="{picture}" alt="{_alt(output)}">'
    if _TEXT in data:
        return _block(_joined(data[_TEXT]))
    raise ValueError(f"a page shows texts and SVG pictures, none of {sorted(data)}")


def _alt(output: Mapping[str, Any]) -> str:
    """Return what a picture shows in words: the metadata `alt` of its output."""
    words = output.get("metadata", {}).get("alt", "")
    if not words:
        raise ValueError('a picture of a notebook needs words: display(…, metadata={"alt": "…"})')
    return escape(words, quote=True)


def _block(text: str) -> str:
    # Four spaces more than any fence in the text could have: an indented block has no end mark.
    return "\n".join(f"    {line}".rstrip() for line in text.rstrip("\n").split("\n"))


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
