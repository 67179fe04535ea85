"""YAML as people write it: the safe loader of PyYAML, which also reads 1e-5 as a number, as YAML 1.2 does."""

import re
from typing import Any

import yaml

_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+")
_MOST = 100_000  # values of a text


class Loader(yaml.SafeLoader):
    """PyYAML follows YAML 1.1, where a float needs a point and its exponent a sign."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"^{_EXPONENT.pattern}$"), list("-+.0123456789")
)


def parsed(text: str) -> Any:
    """The value of a text. Raises yaml.YAMLError."""
    node = composed(text)
    loader = Loader("")
    try:
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def composed(text: str) -> Any:
    """The nodes of a text, which know their lines. Raises yaml.YAMLError, also for what no reader of the value could end."""
    try:
        node = yaml.compose(text, Loader)
        if node is not None:
            _size(node, {})
            _refuse_twice(node, set())
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    return node


def _refuse_twice(node: yaml.Node, seen: set[int]) -> None:
    """Raises ConstructorError for a mapping that has a key twice: readers take the last one, and nobody sees the other."""
    if isinstance(node, yaml.ScalarNode) or id(node) in seen:
        return
    seen.add(id(node))
    keys = set[str]()
    for part in node.value:
        key, *values = part if isinstance(part, tuple) else (None, part)
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} stands twice", key.start_mark
                )
            keys.add(key.value)
        for value in values:
            _refuse_twice(value, seen)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes below a node, those of an alias each time that it is used. Raises ConstructorError if there are too many."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = _MOST  # an alias that contains itself has no end
        below = [
            part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))
        ]
        known[id(node)] = 1 + sum(_size(part, known) for part in below)
    if known[id(node)] >= _MOST:
        says = f"it has more than {_MOST:,} values, with those of aliases at each use"
        raise yaml.constructor.ConstructorError(None, None, says, node.start_mark)
    return known[id(node)]
