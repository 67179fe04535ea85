"""The labels of weights in a run's object store: version and, of a delta, its parent. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Link:
    """A version in the object store.

    parent: version to which its changes apply; None for a whole version.
    """

    version: PolicyVersion
    parent: PolicyVersion | None

    def labels(self) -> dict[str, str]:
        """Return the labels of the object."""
        own = _labels("", self.version)
        return own if self.parent is None else own | _labels("parent_", self.parent)


def read(labels: Mapping[str, str]) -> Link:
    """Return the link in the labels of an object.

    Raise InvalidInput for malformed labels, or a parent that is not an older version.
    """
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
    return {
        f"{prefix}epoch": str(version.epoch),
        f"{prefix}step": str(version.step),
        f"{prefix}digest": version.digest.hex(),
    }


def _version(prefix: str, labels: Mapping[str, str]) -> PolicyVersion:
    digest = bytes.fromhex(labels[prefix + "digest"])
    if len(digest) != _DIGEST_BYTES:
        raise ValueError(f"a digest of {len(digest)} bytes")
    return PolicyVersion(int(labels[prefix + "epoch"]), int(labels[prefix + "step"]), digest)
