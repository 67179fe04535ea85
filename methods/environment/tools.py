"""tools: typed functions of the user's own, and tools of MCP servers.

A call is JSON between two marks, `<tool_call>{"name": "f", "arguments": {}}</tool_call>`, as Qwen
and Hermes were taught. `banyan tools RECIPE` prints the text that tells a model which tools
there are. Arguments are checked against the functions' types, and the servers' schemas.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from banyan.environments.external import NotBegun
from banyan.environments.malformed import Malformed
from banyan.environments.signature import Signature
from banyan.environments.tools import effect_of, is_deterministic
from banyan.plugins import Row
from methods.environment.calls import Marks
from methods.environment.mcp.server import Server

_KEY = "idempotency_key"  # parameter of an external function that is filled in


class Tool(Protocol):
    """A tool that a call can name."""

    @property
    def effect(self) -> str:
        """Effect of a call: none, state or external."""
        ...

    @property
    def deterministic(self) -> bool:
        """True if equal calls have equal answers."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the tool as chat templates describe one."""
        ...

    def checked(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments of a call. Raises ValueError that names what is wrong."""
        ...

    def call(self, arguments: dict[str, Any], key: str) -> Any:
        """Return what the tool answers.

        key: idempotency key of a call that changes something outside
        """
        ...


@dataclass
class Tools:
    """Answers with what a function, or a server's tool, returns."""

    functions: list[str] = field(default_factory=list)
    """Functions as module:function, each declared with `banyan.environments.tools.tool`."""
    servers: list[Mapping[str, Any]] = field(default_factory=list)
    """MCP servers: a command with arguments, or a url, and the tools that may be called."""
    begin: str = "<tool_call>"
    """Mark before a call."""
    end: str = "</tool_call>"
    """Mark behind it, with which the action ends."""

    name: str = field(default="tools", init=False)
    effect: str = field(default="none", init=False, repr=False)
    allowed: tuple[str, ...] = field(default=(), init=False, repr=False)  # environment.external
    key: str = field(default="", init=False, repr=False)  # of a call that may change things outside
    paths: ClassVar[tuple[str, ...]] = ()
    _servers: list[Server] = field(default_factory=list, init=False, repr=False)
    _tools: dict[str, Tool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        Marks(self.begin, self.end)
        named = isinstance(self.functions, list)
        if not named or not all(isinstance(one, str) and ":" in one for one in self.functions):
            raise ValueError(
                f"functions must be a list of module:function, got {self.functions!r:.80}"
            )
        if not isinstance(self.servers, list) or not (self.functions or self.servers):
            raise ValueError("there are no tools: name functions, servers, or both")
        self._servers = [Server(one, f"servers.{n}") for n, one in enumerate(self.servers)]

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the functions, whose folders steps may read."""
        return tuple(dict.fromkeys(named.partition(":")[0] for named in self.functions))

    @property
    def deterministic(self) -> bool:
        """True. Raises ValueError that names a tool which does not say that it is."""
        for name, tool in self._tools.items():
            if not tool.deterministic:
                raise ValueError(
                    f"tool {name} does not say that it is deterministic; if equal calls have equal"
                    f' answers, declare @tool(effect="{tool.effect}", deterministic=True); tools of'
                    " servers never do"
                )
        return True

    @property
    def readable(self) -> tuple[str, ...]:
        """Files of the servers' programs."""
        return tuple(path for server in self._servers for path in server.readable)

    @property
    def processes(self) -> bool:
        """True if steps start programs."""
        return any("command" in server.settings for server in self._servers)

    def prepare(self) -> None:
        """Import the functions. Raises ValueError for one that is no tool."""
        for named in self.functions:
            module, _, attribute = named.partition(":")
            function = getattr(importlib.import_module(module), attribute)
            self._add(attribute, _Function(function, attribute), named)
        for server in self._servers:
            for name in server.effects:
                self._add(name, _Served(server, name), f"{name} of {server.where}")
        external = {name for name, tool in self._tools.items() if tool.effect == "external"}
        if unknown := sorted(set(self.allowed) - external):
            raise ValueError(
                f"environment.external names {unknown[0]!r}, which is no external tool here; they"
                f" are: {', '.join(sorted(external)) or 'none'}"
            )

    def _add(self, name: str, tool: Tool, named: str) -> None:
        if name in self._tools:
            raise ValueError(f"there are two tools {name!r}; a call could mean either")
        if tool.effect == "external" and name not in self.allowed:
            raise ValueError(
                f"tool {named} changes something outside, or does not say; if it may, name it in"
                f" environment.external: [{name}]; if it changes nothing outside, declare"
                ' @tool(effect="none") or @tool(effect="state"), or likewise in a server\'s tools'
            )
        self._tools[name] = tool

    def reset(self, row: Row, seed: int = 0) -> None:
        """Begin; the state of the functions' modules is that after their import."""

    def step(self, action: str) -> tuple[str, float, bool]:
        """Call a tool. Raises ValueError for a call that is wrong."""
        self.effect = "none"
        name, arguments = _parsed(Marks(self.begin, self.end).call(action))
        if not isinstance(name, str) or name not in self._tools:
            raise ValueError(f"there is no tool {name!r:.60}; known: {', '.join(self._tools)}")
        tool = self._tools[name]
        checked = tool.checked(arguments)
        self.effect = tool.effect
        if tool.effect == "external" and not self.key:
            raise NotBegun(name)
        returned = tool.call(checked, self.key)
        text = returned if isinstance(returned, str) else json.dumps(returned, ensure_ascii=False)
        return text, 0.0, False

    def about(self) -> str:
        """Return the text that tells a model of the tools."""
        schemas = [json.dumps(tool.schema()) for tool in self._tools.values()]
        call = f'{self.begin}{{"name": <name>, "arguments": <object>}}{self.end}'
        return "\n".join(["You may call these tools:", *schemas, f"A call is {call}"])


class _Function:
    """A function of the user's own."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self.effect = function, effect_of(function)
        self.deterministic = is_deterministic(function)
        filled = (_KEY,) if self.effect == "external" else ()
        self._signature = replace(Signature.of(function, filled=filled), name=name)
        self._filled = [key for key in filled if key in inspect.signature(function).parameters]

    def schema(self) -> dict[str, Any]:
        return self._signature.schema()

    def checked(self, arguments: Any) -> dict[str, Any]:
        return self._signature.checked(arguments)

    def call(self, arguments: dict[str, Any], key: str) -> Any:
        return self._function(**arguments, **dict.fromkeys(self._filled, key))


@dataclass(frozen=True)
class _Served:
    """A tool of a server."""

    server: Server
    name: str
    deterministic: bool = False

    @property
    def effect(self) -> str:
        return self.server.effects[self.name]

    def schema(self) -> dict[str, Any]:
        return self.server.schema(self.name)

    def checked(self, arguments: Any) -> dict[str, Any]:
        return self.server.checked(self.name, arguments)

    def call(self, arguments: dict[str, Any], key: str) -> Any:
        return self.server.session.call(self.name, arguments, key)


def _parsed(call: str) -> tuple[Any, Any]:
    try:
        data = json.loads(call)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a call is no JSON: {error}") from None
    if not isinstance(data, dict) or not {"name", "arguments"} <= set(data):
        raise Malformed('a call is an object with "name" and "arguments"')
    return data["name"], data["arguments"]
