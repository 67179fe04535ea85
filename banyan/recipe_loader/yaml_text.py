"""YAML as people write it: PyYAML's safe loader, which also reads 1e-5 as a number, as YAML 1.2."""

import re
from typing import Any

import yaml

_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+")
_MOST = 100_000  # values in a text


class Loader(yaml.SafeLoader):
    """Safe loader with YAML 1.2 floats.

    PyYAML follows YAML 1.1, where a float needs a point, and its exponent a sign.
    """


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"^{_EXPONENT.pattern}$"), list("-+.0123456789")
)


def parsed(text: str) -> Any:
    """Return the value of a text. Raises yaml.YAMLError."""
    node = composed(text)
    loader = Loader("")
    try:
        return None if node is None else loader.construct_document(node)
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML takes these for a value by its form or its tag, and then cannot make one of it.
        says = f"it holds a number, a date or a tagged value that there is none of ({error})"
        raise yaml.YAMLError(says) from None
    finally:
        loader.dispose()


def composed(text: str) -> Any:
    """Return the nodes of a text, with their lines.

    Raises yaml.YAMLError, also for a text whose value is too deep or too large to be read.
    """
    try:
        node = yaml.compose(text, Loader)
        if node is not None:
            _size(node, {})
            _refuse_twice(node, set())
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    return node


def _refuse_twice(node: yaml.Node, checked: set[int]) -> None:
    """Raise ConstructorError for a mapping with a duplicate key.

    Readers would take the last one, and the other would go unnoticed.
    """
    if isinstance(node, yaml.ScalarNode) or id(node) in checked:
        return
    checked.add(id(node))
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
            _refuse_twice(value, checked)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of nodes below a node, those of an alias at each use.

    Raises ConstructorError if there are too many.
    """
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
