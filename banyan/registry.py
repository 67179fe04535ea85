"""Registry of plugins: entry points `banyan.<axis>`, or the user's own `module:attribute`."""

import dataclasses
import difflib
import functools
import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.errors import InvalidInput, users_code, with_kind
from banyan.plugins import traits
from banyan.plugins.environment import HOSTED as HOSTED_ENVIRONMENTS
from banyan.plugins.environment import OURS as OUR_ENVIRONMENTS
from banyan.plugins.traits import EstimatorTraits, PolicyTraits
from banyan.runtime.launch import OUR_PACKAGES, take_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
def _entries(axis: str) -> "Mapping[str, EntryPoint]":
    """Return the entry points of an axis, by name.

    They are read once: reading opens a file of every installed package and takes 7 ms, and each
    tree of a run looks up its policy.
    """
    import importlib.metadata  # a third of the imports of a scorer that is named by its module

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
    near = difflib.get_close_matches(name, names(axis), n=1, cutoff=0.75)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(
        f"there is no {axis} plugin {name!r}; {meant}known: {', '.join(names(axis))}; or give "
        "module:attribute"
    )


def _load(axis: str, entry: "EntryPoint") -> Any:
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
        imported = importlib.import_module(module)
    except (ImportError, ValueError) as error:  # ValueError: an empty name
        raise InvalidInput(
            f"cannot import {module!r} of {name!r}: {error}{_missing(module, error)}"
            f"{_taken(module)}"
        ) from None
    except (Exception, SystemExit) as error:  # foreign code may raise anything on import
        raise InvalidInput(
            f"cannot import {module!r} of {name!r}: {type(error).__name__}: {error}"
        ) from None
    try:
        return getattr(imported, attribute)
    except AttributeError:
        raise InvalidInput(
            f"module {module!r} has no attribute {attribute!r}{_taken(module)}"
        ) from None


def _missing(module: str, error: Exception) -> str:
    """Return a hint for a module that is not there: the plugin's own, or one that it imports."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if error.name and error.name.partition(".")[0] != module.partition(".")[0]:
        return (
            f"; {module!r} imports it: install it for {sys.executable}, or for an environment name"
            " the interpreter that has it in environment.python"
        )
    return "; is its folder on PYTHONPATH?"


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
        required = [f.name for f in dataclasses.fields(plugin) if f.init and _needed(f)]
        if missing := [key for key in required if key not in settings]:
            raise InvalidInput(f"{axis} plugin {name!r} needs the setting {missing[0]!r}")
    with users_code(lambda error: f"{axis} plugin {name!r}: {_problem(error)}", passing=()):
        return plugin(**settings) if isinstance(plugin, type) else plugin


def _needed(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _problem(error: BaseException) -> str:
    """Return an error of a plugin's constructor; one about its settings speaks for itself."""
    return str(error) if isinstance(error, TypeError | ValueError) else with_kind(error)


def tree_policy(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the tree policy with its settings. Raises InvalidInput for any other object."""
    return _of_kind("generate", name, settings, "tree policy", "plan(view, room, rng)")


def environment(name: str, settings: Mapping[str, Any], hosting: Hosting | None = None) -> Any:
    """Return the environment with its settings.

    A class of the user's own (`module:class`) is not imported: it runs in children of the verifier
    alone, with its hosting. Raises InvalidInput for one that is not there.
    """
    if ":" in name and hosting is not None:
        return Hosted(name, settings, hosting)
    listed = {**OUR_ENVIRONMENTS, **HOSTED_ENVIRONMENTS}
    if name not in listed:
        raise InvalidInput(
            f"there is no environment {name!r}; known: {', '.join(listed)}; or give a class of"
            " your own as module:class"
        )
    built = _of_kind("environment", name, settings, "environment", "reset(row, seed)")
    if type(built) is not find("environment", listed[name]):
        raise InvalidInput(
            f"environment {name!r} is {type(built).__module__}, not Banyan's own; register another"
            " name"
        )
    if name in HOSTED_ENVIRONMENTS and hosting is not None:
        paths = tuple(getattr(built, key) for key in built.paths)
        hosting = dataclasses.replace(
            hosting,
            end=built.end,
            readable=(*paths, *getattr(built, "readable", ())),
            processes=getattr(built, "processes", False),
        )
        return Hosted(name, settings, hosting, getattr(built, "modules", ()))
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
