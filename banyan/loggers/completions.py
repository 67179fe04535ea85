"""Samples of completions for loggers that take them.

Prompts and answers leave a run by opt-in alone: a logger gets them if its settings ask for a number
of them. A row's own fields, with its answer, are no part of a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from banyan.errors import InvalidInput
from banyan.text.printable import encodable

MOST = 64  # samples of a step
LONGEST = 16_384  # characters of a prompt or a completion
NAME = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A path of a tree that a step trained on.

    step: step of the training, as of the step's metrics
    prompt: text of the prompt, as the model read it
    completion: text of the whole path behind it, answers of an environment included
    reward: reward of the path as scorers gave it, without any KL; None where it has none, or is too
        old to take part
    advantage: mean advantage over the path's own tokens where the estimator credits nodes, else the
        advantage of its leaf; 0 in a group that teaches nothing, None for a path without a part
    scores: values of scorers and of their parts, by the names of metrics: `score/SCORER`,
        `part/SCORER/PART`
    tree_id: the tree in hex
    segment, end: the leaf: the first `end` tokens of a segment, whose id is in hex
    policy_step: newest policy step that sampled a segment of the path
    """

    step: int
    prompt: str
    completion: str
    reward: float | None
    advantage: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    tree_id: str
    segment: str
    end: int
    policy_step: int


class CompletionsLogger(Protocol):
    """Logger that takes samples of completions, beside the methods of `banyan.loggers.Logger`.

    completions: samples that it wants of a step, at most 64; 0 for none
    completions_every: steps from one sampled step to the next; the first step is one of them
    """

    completions: int
    completions_every: int

    def log_completions(self, step: int, rows: Sequence[Completion]) -> None:
        """Record samples of a step. They are durable once this returns. It may raise anything."""
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """Samples that a logger wants.

    count: samples of a step; 0 for none
    every: steps between sampled steps
    """

    count: int = 0
    every: int = 1

    def at(self, step: int) -> int:
        """Return the samples that are wanted of a step."""
        return self.count if step == 1 or step % self.every == 0 else 0


def wish_of(name: str, logger: object) -> Wish:
    """Return the samples that a logger wants; none for one without `log_completions`.

    Raises InvalidInput for settings that are none, or that its methods cannot serve.
    """
    count: Any = getattr(logger, "completions", 0)
    every: Any = getattr(logger, "completions_every", 1)
    setting = f"logging.settings.{name}.completions"
    if type(count) is not int or not 0 <= count <= MOST:
        raise InvalidInput(f"{setting} is {count!r}; it is a number of samples from 0 to {MOST}")
    if type(every) is not int or every < 1:
        raise InvalidInput(f"{setting}_every is {every!r}; it is a number of steps from 1 on")
    if count and not callable(getattr(logger, "log_completions", None)):
        raise InvalidInput(f"{setting} is {count}, but {name} has no method `log_completions`")
    return Wish(count, every)


def cut(text: str, most: int = LONGEST) -> str:
    """Return a text that UTF-8 can carry; of one beyond `most` characters its beginning and end,
    with a mark that says how many are left out.
    """
    if len(text) > most:
        head, tail = text[: most // 2], text[len(text) - (most - most // 2) :]
        text = f"{head}\n[… {len(text) - most:,} characters left out …]\n{tail}"
    return encodable(text)


_COLUMNS = ("step", "prompt", "completion", "reward", "advantage")
_PLACE = ("tree_id", "segment", "end", "policy_step")


def plain(row: Completion) -> dict[str, Any]:
    """Return a sample as plain data, scores by their names."""
    first = {name: getattr(row, name) for name in _COLUMNS}
    return {**first, **row.scores, **{name: getattr(row, name) for name in _PLACE}}


def table(rows: Sequence[Completion]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of a table; None for a score that a sample has not."""
    scores = sorted({name for row in rows for name in row.scores})
    columns = [*_COLUMNS, *scores, *_PLACE]
    return columns, [[plain(row).get(name) for name in columns] for row in rows]
