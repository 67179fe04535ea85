"""Dashboards as Grafana reads them, from the short descriptions in dashboards/*.yaml.

A description has a title, its purpose (`about`), whether its panels ask by run, and rows of panels.
A panel has a title, a unit of Grafana, one query (`expr`, `legend`) or several (`queries`), and may
have a kind (timeseries, stat, heatmap), `max`, `stacked`, and a reason to look at it (`why`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).with_name("dashboards")
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA = 39  # version of Grafana's format; newer ones read it
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8  # panels a row; units of a grid of 24
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
Panel = Mapping[str, Any]


def descriptions() -> dict[str, dict[str, Any]]:
    """Return the descriptions of all dashboards by name."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}


def queries(panel: Panel) -> list[dict[str, str]]:
    """Return the queries of a panel: `expr`, and `legend` where there is one."""
    if "queries" in panel:
        return list(panel["queries"])
    return [{key: panel[key] for key in ("expr", "legend") if key in panel}]


def dashboard_file(name: str, description: Mapping[str, Any]) -> str:
    """Return a dashboard as the file that Grafana imports."""
    return json.dumps(dashboard(name, description), indent=1) + "\n"


def dashboard(name: str, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dashboard in Grafana's format."""
    return {
        "uid": f"banyan-{name}",
        "title": description["title"],
        "description": description["about"],
        "tags": ["banyan"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "links": [_links()],
        "annotations": {"list": [_alerts()]},
        "templating": {"list": [_data_source(), *([_run()] if description["run"] else [])]},
        "panels": list(_placed(description["rows"])),
    }


def _placed(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    y, number = 0, 1
    for row in rows:
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        head = {"id": number, "type": "row", "title": row["title"], "gridPos": place}
        yield head | {"collapsed": False, "panels": []}
        y, number = y + 1, number + 1
        panels = row["panels"]
        for at, panel in enumerate(panels):
            below, beside = divmod(at, _COLUMNS)
            place = {"h": _HEIGHT, "w": _WIDTH, "x": beside * _WIDTH, "y": y + below * _HEIGHT}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            number += 1
        y += -(-len(panels) // _COLUMNS) * _HEIGHT


def _panel(panel: Panel) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    defaults: dict[str, Any] = {"unit": panel["unit"], "min": 0} | (
        {"max": panel["max"]} if "max" in panel else {}
    )
    if "reward" in panel["title"].lower():  # rewards of users may lie below 0
        del defaults["min"]
    if kind == "timeseries":
        defaults |= {"custom": _lines(panel)}
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel.get("why", ""),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[kind],
        "targets": [
            _target(letter, query, kind)
            for letter, query in zip("ABCDEFGH", queries(panel), strict=False)
        ],
    }


def _lines(panel: Panel) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.get("stacked") else "none", "group": "A"}
    filled = 20 if panel.get("stacked") else 5
    style = {"lineWidth": 1, "fillOpacity": filled, "showPoints": "auto", "spanNulls": True}
    return style | {"stacking": stacking}


_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
        "orientation": "auto",
        "justifyMode": "auto",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
        "yAxis": {"axisPlacement": "left"},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "tooltip": {"mode": "single", "yHistogram": False},
        "legend": {"show": True},
    },
}


def _target(letter: str, query: Mapping[str, str], kind: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query["expr"],
        "legendFormat": query.get("legend", "__auto"),
        "range": kind != "stat",
        "instant": kind == "stat",
        "exemplar": kind == "heatmap",
        "format": "heatmap" if kind == "heatmap" else "time_series",
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def _run() -> dict[str, Any]:
    query = "label_values(banyan_trees_opened_total, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "run"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    """Return the annotation that marks firing alerts in every panel."""
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Banyan.*", alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{run}} {{process}} {{scorer}} {{queue}}",
        "step": "60s",
    }


def _links() -> dict[str, Any]:
    return {
        "title": "Banyan",
        "type": "dashboards",
        "tags": ["banyan"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
