"""The draw of groups that a batch trains on again, from those that earlier batches consumed. Pure.

The buffer has a row's newest group only, and so many rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from banyan import registry
from banyan.draws import Draws, key
from banyan.errors import InvalidInput, users_code, with_kind
from banyan.plugins import StoredGroup

CAPACITY = 512
"""Groups in the buffer, as in the published code of DOTS (ASTRAL-Group/data-efficient-llm-rl)."""
_SCANNED = 4  # capacities of groups that are read at most, repeated rows among them
Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class ConsumedGroup(Generic[Member]):
    """A group that a batch consumed.

    row: digest of its row
    batch: batch that consumed it
    trees: its consumed trees, by index
    """

    group_id: str
    row: bytes
    batch: int
    trees: Sequence[Member]


def newest(
    groups: Iterable[ConsumedGroup[Member]], capacity: int = 0
) -> list[ConsumedGroup[Member]]:
    """Return the newest group of each row, for at most `capacity` rows.

    groups: the newest first
    capacity: 0 for `CAPACITY`
    """
    capacity = capacity or CAPACITY
    by_row: dict[bytes, ConsumedGroup[Member]] = {}
    for scanned, group in enumerate(groups):
        if len(by_row) == capacity or scanned == _SCANNED * capacity:
            break
        if group.trees:
            by_row.setdefault(group.row, group)
    return list(by_row.values())


@dataclass(frozen=True, slots=True)
class Draw:
    """A batch's draw.

    policy: name of the rule
    settings: of the rule
    count: most groups
    seed: seed of the run
    batch: ordinal of the batch
    """

    policy: str
    settings: Mapping[str, Any]
    count: int
    seed: int
    batch: int

    def of(self, groups: Sequence[StoredGroup]) -> list[str]:
        """Return the ids of the drawn groups. Raises InvalidInput if the rule raises or answers
        with something else.

        groups: oldest first
        """
        policy: Any = registry.build("replay", self.policy, self.settings)
        if not groups:
            return []
        rng = Draws(key(self.seed, "replay", self.batch))
        with users_code(self._raised, passing=()):
            drawn = list(policy.sample(groups, self.count, rng))
        self._check(drawn, {group.group_id for group in groups})
        return drawn

    def _raised(self, error: BaseException) -> str:
        raised = f"replay plugin {self.policy!r} raised {with_kind(error)}"
        return f"{raised}; mend it, or take dots or recent"

    def _check(self, drawn: Sequence[object], known: set[str]) -> None:
        name = f"replay plugin {self.policy!r}"
        for group_id in drawn:
            if not isinstance(group_id, str) or group_id not in known:
                raise InvalidInput(f"{name} drew group {group_id!r}, which is not in the buffer")
        if len(set(drawn)) != len(drawn) or len(drawn) > self.count:
            raise InvalidInput(
                f"{name} drew {len(drawn)} groups, {len(set(drawn))} different;"
                f" asked were {self.count} at most"
            )


def settings_of(text: str) -> dict[str, Any]:
    """Return the settings in a request. Raises InvalidInput unless it holds a JSON object."""
    try:
        settings = json.loads(text or "{}")
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise InvalidInput(f"settings_json {text!r} of replay must be a JSON object")
    return settings
