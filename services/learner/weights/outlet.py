"""The outlet of weights: their way to nodes beside the learner's folder."""

from collections.abc import Mapping
from typing import Protocol

from services.chassis.weights.file import WeightManifest


class Outlet(Protocol):
    """A place that weights go to before their policy is announced."""

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        """Send a version; return numbers for the policy's metrics. Raises BanyanError."""
        ...

    async def drop_foreign(self) -> None:
        """Remove the versions of earlier learners, once a policy of this one is announced."""
        ...


class FolderOnly:
    """Weight store `file`: nodes read the folder, or fetch from the learner."""

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        """Send nothing."""
        return {}

    async def drop_foreign(self) -> None:
        """Remove nothing."""
