"""Errors as the page's API answers them: an HTTP status, a reason, and a message for a person."""

import json
from typing import Any

from starlette.responses import Response

from banyan.errors import BanyanError, InvalidInput, NotFound, NotReady, Refused, TemporaryError
from banyan.reasons import Reason

_STATUS: tuple[tuple[type[BanyanError], int], ...] = (
    (NotFound, 404),
    (InvalidInput, 400),
    (Refused, 409),
    (NotReady, 501),
    (TemporaryError, 503),
)
_BY_REASON = {Reason.INTERNAL: 502, Reason.RESOURCE_EXHAUSTED: 503}


class HttpError(BanyanError):
    """Error with a status of its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message, reason)
        self.status = status


def status_of(error: BanyanError) -> int:
    """Return the HTTP status of an error; 502 where the store failed without saying why."""
    if isinstance(error, HttpError):
        return error.status
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return next((s for reason, s in _BY_REASON.items() if error.reason == reason), 502)


def encoded(document: Any) -> bytes:
    """Return a document as JSON of ASCII alone: half characters of hostile texts stay escapes.

    Raise ValueError for a number that is not finite, which no JSON has.
    """
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def json_response(document: Any, status: int = 200) -> Response:
    """Return a JSON response that no cache keeps; bytes are a document that is encoded already."""
    content = document if isinstance(document, bytes) else encoded(document)
    headers = {"cache-control": "no-store"}
    return Response(content, status, headers, media_type="application/json")


def error_response(error: BanyanError) -> Response:
    """Return the response of an error."""
    return error_document(status_of(error), error.reason, str(error))


def error_document(status: int, reason: str, message: str) -> Response:
    """Return a response with an error that has no class."""
    return json_response({"error": {"reason": str(reason), "message": message}}, status)
