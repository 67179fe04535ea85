"""Answers held against the OpenAPI document, which here forbids members that it does not name."""

import json
from collections.abc import Iterable
from typing import Any

from jsonschema import Draft202012Validator

from services.gateway.page.http import openapi

_JSON, _EVENTS = "application/json", "text/event-stream"


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """Close every object whose members the document names, in answers; return the document."""
    for schema in document["components"]["schemas"].values():
        _close(schema)
    for item in document["paths"].values():
        for operation in item.values():
            _close(operation["responses"])
    return document


def _close(part: Any) -> None:
    if isinstance(part, dict):
        if part.get("type") in ("object", ["object", "null"]) and "properties" in part:
            part.setdefault("additionalProperties", False)
        part = list(part.values())
    if isinstance(part, list):
        for below in part:
            _close(below)


class Documented:
    """The document of some endpoints, as a test holds answers against it."""

    def __init__(self, endpoints: Iterable[Any]) -> None:
        made = openapi.document(endpoints, "1")
        self.document = strict(json.loads(json.dumps(made)))

    def check(self, path: str, answer: Any, method: str = "get") -> None:
        """Fail unless an answer is what the document says."""
        self._check(self._content(path, method)[_JSON]["schema"], answer, f"{method} {path}")

    def check_event(self, path: str, name: str, data: str) -> None:
        """Fail unless an event is one that the document names, with the data that it says."""
        kinds = self._content(path, "get")[_EVENTS]["schema"]["anyOf"]
        (kind,) = [k for k in kinds if name in k["properties"]["event"]["enum"]]
        self._check(kind["properties"]["data"]["contentSchema"], json.loads(data), path)

    def _content(self, path: str, method: str) -> Any:
        return self.document["paths"][path][method]["responses"]["200"]["content"]

    def _check(self, schema: Any, value: Any, where: str) -> None:
        whole = {**schema, "components": self.document["components"]}
        wrong = [
            f"{where} {error.json_path}: {error.message[:300]}"
            for error in Draft202012Validator(whole).iter_errors(value)
        ]
        assert not wrong, wrong
