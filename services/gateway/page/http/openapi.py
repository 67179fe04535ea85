"""The OpenAPI document, from the declarations of the endpoints. Pure."""

from collections.abc import Iterable
from typing import Any

from services.gateway.page.api.endpoint import Endpoint
from services.gateway.page.documents import run_types, system_types, tree_types
from services.gateway.page.http.json_types import Schema, members, text
from services.gateway.page.http.parameters import Parameter

_STATUSES = {
    "400": "A parameter is wrong; the message names it and what is allowed.",
    "401": "The token is missing.",
    "403": "The request comes from another site.",
    "404": "There is no such thing.",
    "409": "A rule forbids it, such as the state of the run.",
    "413": "The body is too large.",
    "414": "The query is too large.",
    "421": "The Host header names another server.",
    "502": "The store failed.",
    "503": "The store does not answer, or too much is under way; ask again.",
}


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """Return the document of the endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Banyan",
            "version": version,
            "description": "Runs, metrics, trees and the state of the system.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                **run_types.COMPONENTS,
                **tree_types.COMPONENTS,
                **system_types.COMPONENTS,
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Content of the file `secret` in the state folder.",
                }
            },
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.about,
        "parameters": [
            *(_parameter(place, "path") for place in endpoint.places),
            *(_parameter(parameter, "query") for parameter in endpoint.parameters),
        ],
        "responses": {"200": _answer(endpoint), **_failures(endpoint)},
    }
    if endpoint.token:
        operation["security"] = [{"token": []}]
    if endpoint.body:
        properties = {part.name: part.schema() for part in endpoint.body}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(parameter: Parameter, where: str) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": where,
        "required": where == "path",
        "description": parameter.about,
        "schema": parameter.schema(),
    }


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.stream:
        # OpenAPI 3.1 has no word for the items of a stream, so tools take this for each of them.
        events = [_event(name, data) for name, data in endpoint.events.items()]
        content: dict[str, Any] = {"text/event-stream": {"schema": {"anyOf": events}}}
    else:
        content = {"application/json": {"schema": members(endpoint.answers)}}
    return {"description": endpoint.about, "content": content}


def _event(name: str, data: Schema) -> Schema:
    held = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    event = members({"event": text(words=[name]), "data": held})
    return {**event, "properties": {**event["properties"], "id": text("place in the stream")}}


def _failures(endpoint: Endpoint) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        status: {"description": words, "content": content} for status, words in _STATUSES.items()
    }
