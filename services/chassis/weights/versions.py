"""What is said of a version of the weights in a run's object store: which one it is, and which one it follows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Link:
    """A version and, unless it is whole, the one that its changes are of."""

    version: PolicyVersion
    parent: PolicyVersion | None

    def labels(self) -> dict[str, str]:
        """As an object carries it."""
        return _labels("", self.version) | (_labels("parent_", self.parent) if self.parent else {})


def read(labels: Mapping[str, str]) -> Link:
    """The link that an object carries. Raises InvalidInput for one that cannot be: a parent is always an older version."""
    try:
        version = _version("", labels)
        parent = _version("parent_", labels) if "parent_step" in labels else None
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"labels {dict(labels)!r} name no version of weights: {error!r}"
        ) from None
    if parent is not None and (parent.epoch, parent.step) >= (version.epoch, version.step):
        raise InvalidInput(f"{version.name} cannot follow {parent.name}")
    return Link(version, parent)


def _labels(prefix: str, version: PolicyVersion) -> dict[str, str]:
    numbers = {
        "epoch": str(version.epoch),
        "step": str(version.step),
        "digest": version.digest.hex(),
    }
    return {prefix + name: value for name, value in numbers.items()}


def _version(prefix: str, labels: Mapping[str, str]) -> PolicyVersion:
    digest = bytes.fromhex(labels[prefix + "digest"])
    if len(digest) != _DIGEST_BYTES:
        raise ValueError(f"a digest of {len(digest)} bytes")
    return PolicyVersion(int(labels[prefix + "epoch"]), int(labels[prefix + "step"]), digest)
