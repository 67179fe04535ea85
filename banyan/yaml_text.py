"""YAML as people write it: the safe loader of PyYAML, which also reads 1e-5 as a number, as YAML 1.2 does."""

import re
from typing import Any

import yaml

_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+")


class Loader(yaml.SafeLoader):
    """PyYAML follows YAML 1.1, where a float needs a point and its exponent a sign."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^{_EXPONENT.pattern}$"), list("-+.0123456789"))


def parsed(text: str) -> Any:
    """The value of a text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader)


def composed(text: str) -> Any:
    """The nodes of a text, which know their lines. Raises yaml.YAMLError."""
    return yaml.compose(text, Loader)
