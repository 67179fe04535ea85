"""Sessions with a server: requests with their answers, tools, and calls."""

from typing import Any

from banyan.environments.servers import ServerFailed
from methods.environment.mcp.transport import Message, Transport

_VERSION = "2025-06-18"
_METHOD_NOT_FOUND = -32601
_MOST_PAGES = 100


class ToolError(Exception):
    """Raised by a call that the server answers with an error, or does not answer."""


class Session:
    """A session, begun.

    Raises ServerFailed if the server does not begin one.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self._number = transport, 0
        client = {"name": "banyan", "version": "1"}
        begin = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
        self._answered("initialize", begin)
        transport.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def tools(self) -> list[Message]:
        """Return all tools that the server lists by a name.

        Raises ServerFailed for what is no list.
        """
        tools: list[Message] = []
        asked: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            page = self._answered("tools/list", asked)
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise ServerFailed(f"its tools are {listed!r:.60}, no list")
            tools += [tool for tool in listed if _is_named(tool)]
            if not page.get("nextCursor"):
                return tools
            asked = {"cursor": page["nextCursor"]}
        raise ServerFailed(f"its list of tools has more than {_MOST_PAGES} pages")

    def call(self, name: str, arguments: Message, key: str = "") -> str:
        """Return the text of a tool's answer. Raises ToolError for any other end of the call.

        key: idempotency key of a call that changes something outside
        """
        asked = {"name": name, "arguments": arguments}
        if key:
            asked["_meta"] = {"banyan/idempotency-key": key}
        try:
            answer = self._request("tools/call", asked)
        except ServerFailed as error:
            raise ToolError(f"the server of tool {name} failed in the call: {error}") from None
        if "error" in answer:
            raise ToolError(_message(answer))
        result = answer["result"]
        content = result.get("content") if isinstance(result, dict) else False
        if content is None:  # a tool that has nothing to say
            content = []
        if not isinstance(content, list):
            raise ToolError(f"the server of tool {name} answered {result!r:.60}, no content")
        text = "\n".join(_text(part) for part in content if isinstance(part, dict))
        if result.get("isError"):
            raise ToolError(text)
        return text

    def _answered(self, method: str, params: Message) -> Message:
        answer = self._request(method, params)
        if "error" in answer:
            raise ServerFailed(f"it refused {method}: {_message(answer)}")
        if not isinstance(answer["result"], dict):
            raise ServerFailed(f"it answered {method} with {answer['result']!r:.60}, no object")
        return answer["result"]

    def _request(self, method: str, params: Message) -> Message:
        """Return the answer to a request; others that come before it answer nothing of ours."""
        self._number += 1
        number = self._number
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for message in self._transport.exchange(request):
            if "method" in message:
                self._serve(message)
            elif message.get("id") == number and ("result" in message or "error" in message):
                return message
        raise ServerFailed(f"it ended its answer to {method} without one")

    def _serve(self, message: Message) -> None:
        """Answer a request of the server; a notification has none."""
        if "id" not in message:
            return
        answer: Message = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": _METHOD_NOT_FOUND, "message": "this client has tools alone"}
        self._transport.send(answer)


def _is_named(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _message(answer: Message) -> str:
    error = answer["error"]
    return str(error.get("message") if isinstance(error, dict) else error)[:500]


def _text(part: Message) -> str:
    kind = part.get("type")
    return str(part.get("text", "")) if kind == "text" else f"[{kind}]"
