"""The report of a run as one HTML document that needs nothing else: no script, no other file. Pure.

Every text is escaped, and control characters are shown: names, answers and reasons are anybody's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from banyan.cli.report.chart import Curve, drawn
from banyan.text.printable import printable

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f1d; --soft: #55605a; --line: #d9dedb;
  --ground: #fbfbfa; --card: #fff; --accent: #176f51; --warn: #8a5a00 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecea; --soft: #a5b0aa; --line: #353c38;
  --ground: #151817; --card: #1c201e; --accent: #5cc79e; --warn: #e0b15c } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums }
h1 { font-size: 1.7rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p { margin: .4rem 0 } .soft { color: var(--soft) } .warn { color: var(--warn) }
section.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem; margin: 0 0 1rem; overflow-x: auto }
figcaption { font-weight: 600; margin-bottom: .4rem }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)) }
.charts figure { margin: 0 } .charts svg { width: 100%; height: auto }
.charts svg text { fill: var(--soft); font: 12px system-ui, sans-serif }
.curve { fill: none; stroke: var(--accent); stroke-width: 2 } .dot { fill: var(--accent) }
.rule { stroke: var(--line) } .bar { stroke: var(--accent); stroke-width: 6; opacity: .3 }
table { border-collapse: collapse } th, td { text-align: left; padding: .25rem 1.2rem .25rem 0;
  vertical-align: top } th { color: var(--soft); font-weight: 500 }
td.figure, th.figure { text-align: right }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace }
.tree { background: #fff } .tree svg { color: #222 }
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: its columns, of which those after the first hold figures, and its rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A tree: its title, what to look at, and its SVG text, or why there is none."""

    title: str
    about: str
    svg: str
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a report shows.

    title, about: name of the run, and a line on its state
    facts: names and values, in order
    measured: results on the held-out rows; None without any
    findings: what doctor says, each a headline and sentences
    """

    title: str
    about: str
    facts: Mapping[str, str]
    measured: Table | None
    curves: Sequence[Curve] = ()
    pictures: Sequence[Picture] = ()
    costs: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[tuple[str, Sequence[str]]] = ()
    doctor: str = ""
    recipe: str = ""


def document(report: Report) -> str:
    """Return the HTML text of a report."""
    charts = [(curve, svg) for curve in report.curves if (svg := drawn(curve))]
    body = [
        f"<h1>{_text(report.title)}</h1><p class=soft>{_text(report.about)}</p>",
        _card("", _pairs(report.facts)),
        _card("Before and after", _table(report.measured) if report.measured else ""),
        "<h2>Curves</h2><div class=charts>" if charts else "",
        *(f"<figure><figcaption>{_text(c.name)}</figcaption>{svg}</figure>" for c, svg in charts),
        "</div>" if charts else "",
        "<h2>Trees</h2>" if report.pictures else "",
        *map(_picture, report.pictures),
        _card("What doctor says", _findings(report.findings, report.doctor)),
        _card("Costs", _pairs(report.costs)),
        _card("Configuration", _folded("as resolved, without secrets", report.recipe)),
    ]
    return (
        "<!doctype html>\n"
        f"<html lang=en><head><meta charset=utf-8><title>{_text(report.title)}</title>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n"
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _card(title: str, content: str) -> str:
    if not content:
        return ""
    heading = f"<h2>{_text(title)}</h2>" if title else ""
    return f"{heading}<section class=card>{content}</section>"


def _folded(title: str, text: str) -> str:
    if not text:
        return ""
    return f"<details><summary>{_text(title)}</summary><pre>{_text(text)}</pre></details>"


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = (f"<tr><th scope=row>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in pairs.items())
    return f"<table>{''.join(rows)}</table>" if pairs else ""


def _table(table: Table) -> str:
    head = "".join(_cell("th", i, word) for i, word in enumerate(table.columns))
    rows = ("".join(_cell("td", i, word) for i, word in enumerate(row)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(kind: str, column: int, words: str) -> str:
    return f"<{kind}{' class=figure' if column else ''}>{_text(words)}</{kind}>"


def _picture(picture: Picture) -> str:
    shown = picture.svg or f"<p class=soft>{_text(picture.missing)}</p>"
    return (
        f"<h3>{_text(picture.title)}</h3><p class=soft>{_text(picture.about)}</p>"
        f'<section class="card tree">{shown}</section>'
    )


def _findings(findings: Iterable[tuple[str, Sequence[str]]], facts: str) -> str:
    parts = [
        f"<h3 class=warn>{_text(headline)}</h3>" + "".join(f"<p>{_text(w)}</p>" for w in sentences)
        for headline, sentences in findings
    ]
    return "".join(parts) + (f"<p>{_text(facts)}</p>" if facts else "")
