"""Endpoints that change something, and the session for reading: all need the token."""

import json
import time
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from banyan.errors import InvalidInput, Refused
from services.gateway.page.api.endpoint import RUN, Call, Endpoint
from services.gateway.page.control import Control
from services.gateway.page.documents import runs
from services.gateway.page.http.access import COOKIE, SESSION_S, Access
from services.gateway.page.http.errors import json_response
from services.gateway.page.http.json_types import count, flag, ref, text
from services.gateway.page.http.parameters import LAST, Parameter
from services.gateway.page.reads import Reads

_PAUSE = Parameter(
    name="pause", about="Only pause it: it can be resumed.", kind="flag", default=False
)
_LETTER = Parameter(
    name="letter", about="Number of the dead letter.", kind="integer", least=1, most=LAST
)


class Writes:
    """Handlers of changes.

    control: None where nothing runs
    """

    def __init__(self, reads: Reads, access: Access, control: Control | None) -> None:
        self._reads, self._access, self._control = reads, access, control

    def _running(self) -> Control:
        if self._control is None:
            raise Refused(
                "nothing runs on this state folder, so the page only reads; go on with a run by"
                " `banyan train --resume`, or use `banyan runs` and `banyan dead`",
                "NOT_RUNNING",
            )
        return self._control

    async def cancel(self, call: Call) -> dict[str, Any]:
        control, body = self._running(), await _body(call, (_PAUSE,))
        run_id = await self._reads.run_id(call.path["run"])
        return {"run": await self._shown((await control.cancel(run_id, body["pause"])).run_id)}

    async def resume(self, call: Call) -> dict[str, Any]:
        control = self._running()
        await _body(call, ())
        run_id = await self._reads.run_id(call.path["run"])
        return {"run": await self._shown((await control.resume(run_id)).run_id)}

    async def _shown(self, run_id: str) -> dict[str, Any]:
        answer = await self._reads.run(run_id)
        return runs.run(answer.run, answer.live_ms)

    async def remove(self, call: Call) -> dict[str, Any]:
        control = self._running()
        run = (await self._reads.run(call.path["run"])).run
        if run.run_id != call.path["run"]:
            raise InvalidInput(f"name the whole id of the run that is to be removed: {run.run_id}")
        removed = await control.remove(run)
        return {"run_id": run.run_id, "done": removed.done, "rows": removed.rows}

    async def replay(self, call: Call) -> dict[str, Any]:
        control = self._running()
        await _body(call, ())
        await control.replay(call.path["letter"])
        return {"id": call.path["letter"], "replayed": True}

    async def session(self, call: Call) -> Response:
        response = json_response({"seconds": SESSION_S})
        response.set_cookie(
            COOKIE,
            self._access.session(time.time()),
            max_age=SESSION_S,
            path="/api",
            httponly=True,
            samesite="strict",
            secure=call.request.url.scheme == "https",
        )
        return response

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        run = {"run": ref("Run", "the run in one line")}
        return (
            Endpoint(
                method="POST",
                path="/api/runs/{run}/cancel",
                about="Cancel or pause a run.",
                handler=self.cancel,
                answers=run,
                places=(RUN,),
                body=(_PAUSE,),
                token=True,
            ),
            Endpoint(
                method="POST",
                path="/api/runs/{run}/resume",
                about="Go on with a run that is paused or has failed.",
                handler=self.resume,
                answers=run,
                places=(RUN,),
                token=True,
            ),
            Endpoint(
                method="DELETE",
                path="/api/runs/{run}",
                about="Remove a run that is over, with its files; repeat it until `done`.",
                handler=self.remove,
                answers={
                    "run_id": text("the run"),
                    "done": flag("whether nothing is left"),
                    "rows": count("rows that this request removed"),
                },
                places=(RUN,),
                token=True,
            ),
            *self._others(),
        )

    def _others(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                method="POST",
                path="/api/dead/{letter}/replay",
                about="Publish the message of a dead letter again.",
                handler=self.replay,
                answers={"id": count("its number"), "replayed": flag("true")},
                places=(_LETTER,),
                token=True,
            ),
            Endpoint(
                method="POST",
                path="/api/session",
                about="Set a cookie that is good for reading, for EventSource on other hosts.",
                handler=self.session,
                answers={"seconds": count("for which it is valid")},
                token=True,
            ),
        )


async def _body(call: Call, parts: Sequence[Parameter]) -> dict[str, Any]:
    """Return the members of a request's JSON object; an empty body has the defaults."""
    raw = await call.request.body()
    try:
        data = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        raise InvalidInput("the body is no JSON; send an object such as {}") from None
    if not isinstance(data, dict):
        raise InvalidInput("the body must be a JSON object, such as {}")
    known = {part.name: part for part in parts}
    if unknown := data.keys() - known.keys():
        words = ", ".join(known) or "there are none here"
        raise InvalidInput(f"unknown member {min(unknown)[:80]!r} in the body; known: {words}")
    for name, value in data.items():
        if known[name].kind == "flag" and not isinstance(value, bool):
            raise InvalidInput(f"{name}={value!r:.80}: {known[name].allowed()}")
    return {name: data.get(name, part.default) for name, part in known.items()}
