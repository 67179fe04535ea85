"""An endpoint of the API: its place, its parameters, and its handler."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.page.http.errors import json_response
from services.gateway.page.http.json_types import Schema
from services.gateway.page.http.parameters import Parameter, read_all, read_path


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose parameters are checked.

    path, query: values by name
    """

    request: Request
    path: Mapping[str, Any]
    query: Mapping[str, Any]


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Declaration of an endpoint.

    path: as Starlette writes it, such as /api/runs/{run}
    about: a sentence, for the OpenAPI document
    answers: members of the answer with their types, for the same
    events: names of the events that it answers with, and the types of their data; empty for an
        answer in JSON
    parameters: of the query; `places` those of the path
    token: it needs the token wherever it is called from
    body: members of the request's JSON object
    """

    method: str
    path: str
    about: str
    handler: Handler
    answers: Mapping[str, Schema] = field(default_factory=dict)
    events: Mapping[str, Schema] = field(default_factory=dict)
    places: Sequence[Parameter] = ()
    parameters: Sequence[Parameter] = ()
    body: Sequence[Parameter] = ()
    token: bool = False

    @property
    def stream(self) -> bool:
        """True if it answers with server-sent events."""
        return bool(self.events)

    async def __call__(self, request: Request) -> Response:
        """Answer a request. Raise BanyanError."""
        call = Call(
            request,
            read_path(self.places, request.path_params),
            read_all(self.parameters, request.query_params.multi_items()),
        )
        answer = await self.handler(call)
        return answer if isinstance(answer, Response) else json_response(answer)


LIMIT = Parameter(
    name="limit", about="Most that are listed.", kind="integer", least=1, most=500, default=50
)
AFTER = Parameter(name="after", about="`next` of the page before.", kind="cursor", most=600)
RUN = Parameter(name="run", about="Id of the run, or a unique beginning of it.")
TREE = Parameter(
    name="tree",
    about="Id of the tree in hex, or a unique beginning of it.",
    kind="hex",
    least=8,
    most=64,
)
SEGMENT = Parameter(
    name="segment",
    about="Id of the segment in hex, or a unique beginning of it.",
    kind="hex",
    least=8,
    most=64,
)
