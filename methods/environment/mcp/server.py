"""A server of a recipe: its allow list of tools with their effects, and the digest of its schemas.

    servers:
      - command: [python, shop_server.py]     # or url: https://…, with token: NAME_OF_A_SECRET
        tools: {price: none, order: external} # or [order]: external each
        schemas: 5f0c…                        # digest of what the server says of these tools

What a server itself says of effects is not believed.
"""

import json
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from banyan.digest import blake, canonical
from banyan.environments.servers import ServerChanged, ServerFailed
from banyan.text.printable import encodable
from methods.environment.mcp import transport
from methods.environment.mcp.session import Session
from methods.filter.json_schema import validator_of

_KEYS = frozenset({"command", "url", "token", "tools", "schemas", "files"})
_EFFECTS = ("none", "state", "external")
_DIGITS = 32


@dataclass(frozen=True)
class Server:
    """A server with the tools that may be called.

    settings: its part of the recipe
    where: its place in the recipe, for messages
    effects: effects of its tools by name
    """

    settings: Mapping[str, Any]
    where: str
    effects: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given = self.settings
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{self.where} must be a mapping with command or url, got {given!r:.80}"
            )
        if unknown := sorted(set(map(str, given)) - _KEYS):
            raise ValueError(
                f"{self.where} has no key {unknown[0]!r:.40}; it has {', '.join(sorted(_KEYS))}"
            )
        if ("command" in given) == ("url" in given):
            raise ValueError(f"{self.where} needs either a command or a url")
        _check_texts(given.get("command", ["."]), f"{self.where}.command", least=1)
        _check_texts(given.get("files", []), f"{self.where}.files")
        if "url" in given:
            _check_url(given["url"], f"{self.where}.url")
        if not all(isinstance(given.get(key, ""), str) for key in ("token", "schemas")):
            raise ValueError(f"{self.where}: token and schemas are texts")
        object.__setattr__(self, "effects", self._effects(given.get("tools")))

    def _effects(self, tools: Any) -> dict[str, str]:
        if isinstance(tools, list):
            tools = dict.fromkeys(tools, "external") if all(map(_is_name, tools)) else None
        if not isinstance(tools, Mapping) or not tools or not all(map(_is_name, tools)):
            raise ValueError(
                f"{self.where}.tools names the tools that may be called, as a list or as"
                f" name: none, state or external; got {tools!r:.80}"
            )
        for name, effect in tools.items():
            if effect not in _EFFECTS:
                raise ValueError(
                    f"{self.where}.tools.{name} must be none, state or external, got {effect!r:.40}"
                )
        return dict(tools)

    @property
    def readable(self) -> tuple[str, ...]:
        """Files that its process may read beside the interpreter."""
        named = [word for word in self.settings.get("command", ()) if os.path.isabs(word)]
        return (*named, *self.settings.get("files", ()))

    @cached_property
    def session(self) -> Session:
        """Session with the server, which ends with this process."""
        return Session(transport.of(self.settings))

    @cached_property
    def tools(self) -> Mapping[str, Mapping[str, Any]]:
        """Descriptions of the allowed tools, from the server, by name.

        Raises ServerFailed without one of them, ServerChanged unless they have the digest of the
        recipe.
        """
        try:
            listed = {tool["name"]: tool for tool in self.session.tools()}
        except ServerFailed as error:
            raise ServerFailed(f"{self.where}: the server failed: {error}{error.end}") from None
        if missing := sorted(set(self.effects) - set(listed)):
            raise ServerFailed(
                f"{self.where}.tools: the server has no tool {missing[0]!r}; it has"
                f" {', '.join(sorted(listed))[:300] or 'none'}"
            )
        told = {name: _described(listed[name]) for name in self.effects}
        digest = self._digest(told)
        if self.settings.get("schemas") != digest:
            known = self.settings.get("schemas") or "none"
            raise ServerChanged(
                f"{self.where}.schemas is {known}, and the server's tools have the digest {digest};"
                f" if they are what you mean, write schemas: {digest}"
            )
        return told

    def _digest(self, told: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the digest of descriptions. Raises ServerFailed for what cannot be one."""
        for name, tool in told.items():
            try:
                canonical(tool)  # no NaN, and no half characters
                validator_of(tool["schema"])
            except (ValueError, RecursionError) as error:
                raise ServerFailed(
                    f"{self.where}: the server describes tool {name} wrongly: {error!s:.200}"
                ) from None
        return blake(canonical(told)).hex()[:_DIGITS]

    def schema(self, name: str) -> dict[str, Any]:
        """Return a tool as chat templates of most models describe one."""
        tool = self.tools[name]
        described = {"name": name, "description": tool["text"], "parameters": tool["schema"]}
        return {"type": "function", "function": described}

    def checked(self, name: str, arguments: Any) -> dict[str, Any]:
        """Return the arguments of a call. Raises ValueError that names what is wrong."""
        if not isinstance(arguments, dict):
            got = json.dumps(arguments, ensure_ascii=False)
            raise ValueError(f"arguments must be an object, got {got:.60}")
        validator = validator_of(self.tools[name]["schema"])
        try:
            error = next(validator.iter_errors(arguments), None)
        except Exception as wrong:
            # The library raises anything on a $ref that leads nowhere, on numbers that no float
            # holds, and on deep arguments. Which of them it meets is the action's choice.
            raise ValueError(f"{name}: arguments cannot be checked: {wrong!s:.200}") from None
        if error is not None:
            raise ValueError(f"{name}: arguments at {error.json_path:.60}: {error.message:.200}")
        return arguments


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    return {
        "text": str(tool.get("description") or ""),
        "schema": schema if isinstance(schema, dict) else {"type": "object"},
    }


def _check_url(url: Any, where: str) -> None:
    if not isinstance(url, str) or not _is_url(url):
        raise ValueError(
            f"{where} must be https:// or http://, a host, and a path, without a user's name"
            f" (token names a secret), got {url!r:.100}"
        )


def _is_url(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an address that is none
        return False
    return named and parts.scheme in ("https", "http") and "@" not in parts.netloc


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_text(value: Any) -> bool:
    """Return whether a value can be a word of a command: no NUL, and no half characters."""
    return isinstance(value, str) and "\0" not in value and encodable(value) == value


def _check_texts(values: Any, where: str, least: int = 0) -> None:
    texts = isinstance(values, list) and all(map(_is_text, values))
    if not texts or len(values) < least or not all(values[:least]):
        raise ValueError(f"{where} must be a list of texts (without NUL), got {values!r:.80}")
