"""Finds plugins by name: Python entry points `banyan.<axis>`, or the user's own `module:attribute`."""

import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from banyan.errors import InvalidInput
from banyan.runtime.launch import take_names

take_names()  # before a user's folder is searched: a package `methods` there is not ours

AXES = ("generate", "filter", "control", "rooms", "replay", "optimise", "loggers")


@functools.cache
def _entries(axis: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Read once: it opens a file of every installed package, 7 ms each time, and each tree of a run asks for its policy."""
    entries = importlib.metadata.entry_points(group=f"banyan.{axis}")
    return {entry.name: entry for entry in reversed(tuple(entries))}


def names(axis: str) -> list[str]:
    """Names of the registered plugins of an axis, sorted."""
    return sorted(_entries(axis))


def find(axis: str, name: str) -> Any:
    """The plugin's class or function. Raises InvalidInput with the known names where there is none."""
    if ":" in name:
        return _attribute(name)
    if name in _entries(axis):
        return _entries(axis)[name].load()
    raise InvalidInput(
        f"there is no {axis} plugin {name!r}; known: {', '.join(names(axis))}; or give module:attribute"
    )


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError) as error:  # a name that is none
        raise InvalidInput(
            f"cannot import {module!r} of {name!r}: {error}; is its folder on PYTHONPATH?"
        ) from None
    except AttributeError:
        raise InvalidInput(f"module {module!r} has no attribute {attribute!r}") from None
    except (Exception, SystemExit) as error:  # the module is anybody's
        raise InvalidInput(
            f"cannot import {module!r} of {name!r}: {type(error).__name__}: {error}"
        ) from None


def build(axis: str, name: str, settings: Mapping[str, Any]) -> Any:
    """The plugin with its settings. A plugin is a dataclass whose fields are its settings; unknown ones are refused."""
    plugin = find(axis, name)
    if not (isinstance(plugin, type) and dataclasses.is_dataclass(plugin)):
        if settings:
            raise InvalidInput(
                f"{axis} plugin {name!r} takes no settings, got {', '.join(settings)}"
            )
    else:
        known = [f.name for f in dataclasses.fields(plugin) if f.init]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise InvalidInput(
                f"{axis} plugin {name!r} has no setting {unknown[0]!r}; it has {', '.join(known) or 'none'}"
            )
    try:
        return plugin(**settings) if isinstance(plugin, type) else plugin
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{axis} plugin {name!r}: {error}") from None


def tree_policy(name: str, settings: Mapping[str, Any]) -> Any:
    """The tree policy with its settings. Raises InvalidInput, also for what is none."""
    return _of_kind("generate", name, settings, "tree policy", "plan(view, room, rng)")


def curriculum(name: str, settings: Mapping[str, Any]) -> Any:
    """The curriculum with its settings. Raises InvalidInput, also for what is none."""
    return _of_kind("control", name, settings, "curriculum", "allocate(prompts, budget, rng)")


def estimator(name: str, settings: Mapping[str, Any]) -> Any:
    """The estimator with its settings. Raises InvalidInput, also for what is none."""
    return _of_kind("optimise", name, settings, "estimator", "estimate(group)")


def _of_kind(axis: str, name: str, settings: Mapping[str, Any], kind: str, method: str) -> Any:
    built = build(axis, name, settings)
    if not callable(getattr(built, method.partition("(")[0], None)):
        raise InvalidInput(f"{axis} plugin {name!r} is no {kind}: it has no method `{method}`")
    return built
