"""Observations: what an environment answered to an action, as a TOOL segment records it.

The digest of an observation is part of its segment's identity (docs/segment-encoding.md, version
2). Leases, hosts and durations are not in it, so a replay gives the same digest.
"""

import enum
import math
import struct
from dataclasses import dataclass
from functools import cached_property

from banyan.digest import DIGEST_BYTES, blake, packed
from banyan.errors import InvalidInput

_DIGESTS = ("settings", "action", "answer", "shown", "before", "after")


class Effect(enum.IntEnum):
    """Kind of change that a step makes. Numbers are those of banyan.v1.ToolEffect."""

    NONE = 1  # nothing: it may run any number of times
    STATE = 2  # the environment's own state, which can be copied or made again
    EXTERNAL = 3  # something outside: it runs at most once


class ToolOutcome(enum.IntEnum):
    """End of a step, the action's own doing. Numbers are those of banyan.v1.ToolOutcome."""

    OK = 1
    MALFORMED = 2  # no call can be read in the action
    FAILED = 3  # the tool raised an error
    CPU = 4  # over its processor time
    MEMORY = 5
    OUTPUT = 6
    PROCESSES = 7
    WAITED = 8  # it slept through its time
    CRASHED = 9  # it killed its runner twice


TIME_OVER = frozenset({ToolOutcome.CPU, ToolOutcome.WAITED})
"""Ends by a time, which the same step may not meet again."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """An answer of an environment.

    environment: name of the environment
    version: its version
    settings: digest of its settings
    action: id of the segment that the action ends with
    answer: digest of the whole answer's text
    shown: digest of the text that the path has; another one where the answer was cut
    outcome: how the step ended
    reward: reward of the step; finite
    done: whether the episode is over
    anchor: name of the state for estimators of steps; empty if the environment gives none
    before: digest of the state that the action found
    after: digest of the state that it left
    effect: what the step changed
    """

    environment: str
    version: str
    settings: bytes
    action: bytes
    answer: bytes
    shown: bytes
    outcome: ToolOutcome
    before: bytes
    after: bytes
    effect: Effect
    reward: float = 0.0
    done: bool = False
    anchor: bytes = b""

    def __post_init__(self) -> None:
        for name in _DIGESTS:
            value = getattr(self, name)
            if len(value) != DIGEST_BYTES:
                raise InvalidInput(
                    f"an observation's {name} has {len(value)} bytes; a digest has {DIGEST_BYTES}"
                )
        if not math.isfinite(self.reward):
            raise InvalidInput(f"an observation's reward is {self.reward}; it must be finite")

    @property
    def cut(self) -> bool:
        """True if the path has only parts of the answer."""
        return self.shown != self.answer

    def encode(self) -> bytes:
        """Return the fixed layout: texts and digests behind their lengths, then numbers."""
        return b"".join(
            (
                packed(self.environment.encode()),
                packed(self.version.encode()),
                *(packed(getattr(self, name)) for name in _DIGESTS),
                packed(self.anchor),
                struct.pack(
                    "<BdBB", self.outcome, self.reward + 0.0, self.done, self.effect
                ),  # −0 becomes 0
            )
        )

    @cached_property
    def digest(self) -> bytes:
        """BLAKE2b-256 over `encode()`: 32 bytes."""
        return blake(b"banyan.observation.v1", self.encode())
