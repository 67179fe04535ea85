"""Steps of environments of the user's own, which run in children of the verifier."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from banyan.environments.observation import ToolOutcome

_LISTS = ("readable", "withheld", "external", "secrets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """The needs of an environment of the user's own beside its class.

    end: the mark that ends an action
    python: interpreter that has what the class imports; empty for the verifier's own
    seconds: time of a step, with the steps that are repeated before it
    memory_mb: memory of a step beyond that of its warm child
    concurrency: steps at once in one verifier; None for its own number
    readable: files and folders that steps may read beside the interpreter and the class's folder
    withheld: files of the task, which steps may not read; they get their row
    deterministic: refuse a class that does not say that it is
    external: tools that may change something outside
    network: steps may use the network where the verifier allows that
    secrets: environment variables of the verifier that steps get where it allows that
    processes: steps start programs
    """

    end: str
    python: str = ""
    seconds: float = 10.0
    memory_mb: int = 1024
    concurrency: int | None = None
    readable: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    deterministic: bool = False
    external: tuple[str, ...] = ()
    network: bool = False
    secrets: tuple[str, ...] = ()
    processes: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Hosting":
        """Return the hosting of plain data, as JSON has it. Raises TypeError or KeyError."""
        lists = {name: tuple(values.get(name, ())) for name in _LISTS}
        return cls(**{**values, **lists})


@dataclass(frozen=True, slots=True)
class HostedTask:
    """A step to do.

    name: module:class
    settings: keywords of the class
    hosting: where it runs
    row: the row that the episode begins with
    seed: seed of the episode's draws
    past: actions before, each with the digest of its observation; of those behind `snapshot`, none
    snapshot: the state that the action finds; None where the past leads to it
    turn: steps before it that left a state, by which its draws are keyed
    action: what the path says; None to try the beginning of an episode alone
    """

    name: str
    settings: Mapping[str, Any]
    hosting: Hosting
    row: Mapping[str, Any]
    seed: int
    past: tuple[tuple[str, str], ...] = ()
    snapshot: bytes | None = None
    turn: int = 0
    action: str | None = None


@dataclass(frozen=True, slots=True)
class HostedResult:
    """The end of a step.

    outcome: how it ended
    text: the observation
    reward: reward of the step
    done: whether the episode is over
    anchor: name of the state; empty for none
    snapshot: the state after it; None from a class that makes none
    unchanged: whether the class says that its steps change nothing
    diverged: number of the past action that had another observation this time, from 1; 0 for none
    external: tool that the action would call outside, and that was not called
    changed: how the environment is not the frozen one; empty if it is
    """

    outcome: ToolOutcome
    text: str = ""
    reward: float = 0.0
    done: bool = False
    anchor: bytes = b""
    snapshot: bytes | None = field(default=None, repr=False)
    unchanged: bool = False
    diverged: int = 0
    external: str = ""
    changed: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """A step that changes something outside: it is begun durably, and done once.

    tool: the tool that will be called
    task: the step
    """

    tool: str
    task: HostedTask
