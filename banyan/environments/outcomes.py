"""Ends of runs as the ends of steps that they were for."""

from collections.abc import Mapping

from banyan.environments.observation import ToolOutcome
from banyan.programs.run import Outcome

TOOL_OUTCOMES: Mapping[Outcome, ToolOutcome] = {
    Outcome.DONE: ToolOutcome.OK,
    Outcome.EXITED: ToolOutcome.FAILED,
    Outcome.SIGNALLED: ToolOutcome.CRASHED,
    Outcome.CPU: ToolOutcome.CPU,
    Outcome.MEMORY: ToolOutcome.MEMORY,
    Outcome.OUTPUT: ToolOutcome.OUTPUT,
    Outcome.DISK: ToolOutcome.OUTPUT,
    Outcome.PROCESSES: ToolOutcome.PROCESSES,
    Outcome.WAITED: ToolOutcome.WAITED,
}
"""All that a program causes itself; what the machine causes is no answer."""
WORDS: Mapping[ToolOutcome, str] = {
    ToolOutcome.CPU: "error: the time is over",
    ToolOutcome.WAITED: "error: the time is over",
    ToolOutcome.MEMORY: "error: the memory is full",
    ToolOutcome.OUTPUT: "error: too much output",
    ToolOutcome.PROCESSES: "error: too many processes",
    ToolOutcome.CRASHED: "error: it crashed",
}
"""Text that a path gets about a limit."""
