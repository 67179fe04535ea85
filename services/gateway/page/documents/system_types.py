"""Types of the documents of the system, and of errors, for the OpenAPI document. Pure."""

from collections.abc import Mapping

from services.gateway.page.http.json_types import (
    Schema,
    anything,
    count,
    flag,
    members,
    moment,
    nullable,
    text,
)

_PROCESS = members(
    {
        "name": nullable(text()),
        "service": nullable(text()),
        "run_id": nullable(text()),
        "pid": nullable(count()),
        "state": text(),
        "since": moment(),
        "restarts": count(),
        "health": text(words=("serves", "starts", "does not serve")),
        "last_words": nullable(text()),
    }
)
_QUEUE = members(
    {"stream": text(), "consumer": text(), "waiting": count(), "unacknowledged": count()}
)
_LETTER = members(
    {
        "id": count(),
        "stream": text(),
        "subject": text(),
        "service": text(),
        "reason": text(),
        "attempts": count(),
        "when": moment(),
        "bytes": count(),
        "replayed": flag(),
    }
)
_ERROR = members({"error": members({"reason": text(), "message": text()})})
OPENAPI: Mapping[str, Schema] = {
    "openapi": text(),
    "info": anything(),
    "paths": anything(),
    "components": anything(),
}
COMPONENTS: Mapping[str, Schema] = {
    "Process": _PROCESS,
    "Queue": _QUEUE,
    "Letter": _LETTER,
    "Error": _ERROR,
}
