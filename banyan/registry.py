"""Registry of plugins: entry points `banyan.<axis>`, or the user's own `module:attribute`."""

import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from banyan.errors import InvalidInput, users_code, with_kind
from banyan.plugins import traits
from banyan.plugins.environment import OURS as OUR_ENVIRONMENTS
from banyan.plugins.traits import EstimatorTraits, PolicyTraits
from banyan.runtime.launch import OUR_PACKAGES, take_names

# Before a user's folder is searched, where a package of the same name may lie.
take_names()

AXES = (
    *("generate", "environment", "filter", "control", "rooms", "replay", "optimise", "loggers"),
)
# What a plugin may declare. Another name would go unread, and what it asks for would be missing.
NEEDS: Mapping[str, frozenset[str]] = {
    "generate": traits.needs(PolicyTraits),
    "environment": frozenset(),
    "control": frozenset(),
    "optimise": traits.needs(EstimatorTraits),
}


@functools.cache
def _entries(axis: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return the entry points of an axis, by name.

    They are read once: reading opens a file of every installed package and takes 7 ms, and each
    tree of a run looks up its policy.
    """
    entries = importlib.metadata.entry_points(group=f"banyan.{axis}")
    return {entry.name: entry for entry in reversed(tuple(entries))}


def names(axis: str) -> list[str]:
    """Return the names of the registered plugins of an axis, sorted."""
    return sorted(_entries(axis))


def find(axis: str, name: str) -> Any:
    """Return the plugin's class or function.

    Raises InvalidInput with the known names if there is none.
    """
    if ":" in name:
        return _attribute(name)
    if name in _entries(axis):
        return _load(axis, _entries(axis)[name])
    raise InvalidInput(
        f"there is no {axis} plugin {name!r}; known: {', '.join(names(axis))}; or give "
        "module:attribute"
    )


def _load(axis: str, entry: importlib.metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"{axis} plugin {entry.name!r} is registered as {entry.value!r}, which cannot be "
            f"imported: {error}; install its package again{_taken(entry.module)}"
        ) from None


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError) as error:  # ValueError: an empty name
        raise InvalidInput(
            f"cannot import {module!r} of {name!r}: {error}; is its folder on PYTHONPATH?"
            f"{_taken(module)}"
        ) from None
    except AttributeError:
        raise InvalidInput(
            f"module {module!r} has no attribute {attribute!r}{_taken(module)}"
        ) from None
    except (Exception, SystemExit) as error:  # foreign code may raise anything on import
        raise InvalidInput(
            f"cannot import {module!r} of {name!r}: {type(error).__name__}: {error}"
        ) from None


def _taken(module: str) -> str:
    """Return a hint for a module whose name is that of one of Banyan's own packages."""
    package = module.partition(".")[0]
    if package not in OUR_PACKAGES:
        return ""
    return f" ({package!r} is a package of Banyan: give a module of your own another name)"


def build(axis: str, name: str, settings: Mapping[str, Any]) -> Any:
    """Return the plugin with its settings.

    A plugin is a dataclass whose fields are its settings; unknown ones are refused.
    """
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
                f"{axis} plugin {name!r} has no setting {unknown[0]!r}; it has "
                f"{', '.join(known) or 'none'}"
            )
    with users_code(lambda error: f"{axis} plugin {name!r}: {_problem(error)}", passing=()):
        return plugin(**settings) if isinstance(plugin, type) else plugin


def _problem(error: BaseException) -> str:
    """Return an error of a plugin's constructor; one about its settings speaks for itself."""
    return str(error) if isinstance(error, TypeError | ValueError) else with_kind(error)


def tree_policy(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the tree policy with its settings. Raises InvalidInput for any other object."""
    return _of_kind("generate", name, settings, "tree policy", "plan(view, room, rng)")


def environment(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the environment with its settings. Raises InvalidInput for one that is not ours."""
    if name not in OUR_ENVIRONMENTS:
        raise InvalidInput(
            f"there is no environment {name!r}; known: {', '.join(OUR_ENVIRONMENTS)}. Others would"
            " run unconfined in the verifier, which is not there yet"
        )
    built = _of_kind("environment", name, settings, "environment", "reset(row, seed)")
    if type(built) is not find("environment", OUR_ENVIRONMENTS[name]):
        raise InvalidInput(
            f"environment {name!r} is {type(built).__module__}, not Banyan's own; register another"
            " name"
        )
    return built


def curriculum(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the curriculum with its settings. Raises InvalidInput for any other object."""
    return _of_kind("control", name, settings, "curriculum", "allocate(prompts, budget, rng)")


def estimator(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the estimator with its settings. Raises InvalidInput for any other object."""
    return _of_kind("optimise", name, settings, "estimator", "estimate(group)")


def _of_kind(axis: str, name: str, settings: Mapping[str, Any], kind: str, method: str) -> Any:
    built = build(axis, name, settings)
    if not callable(traits.attribute(built, method.partition("(")[0])):
        raise InvalidInput(f"{axis} plugin {name!r} is no {kind}: it has no method `{method}`")
    with users_code(lambda e: f"{axis} plugin {name!r}: its __dir__ raised {with_kind(e)}"):
        declared = {attribute for attribute in dir(built) if attribute.startswith("needs_")}
    if unread := sorted(declared - NEEDS[axis]):
        raise InvalidInput(
            f"{axis} plugin {name!r} declares {unread[0]}, which nothing reads; a {kind} may "
            f"declare {', '.join(sorted(NEEDS[axis])) or 'none'}"
        )
    return built
