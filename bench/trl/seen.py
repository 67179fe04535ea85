"""Tokens that TRL's model is really given, row by row.

Prompts are recorded at `generate`, whole rows at the passes that are trained. It runs in .venv-trl,
beside the rival. Ids are copied as they come and checked when training is over.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

Ids = tuple[int, ...]


class Seen:
    """Ids of one training run.

    prompts: prompt of every sampled row in order
    sampled, trained: prompt and answer of every row
    """

    def __init__(self, model: Any, ends: Collection[int]) -> None:
        self.prompts: list[Ids] = []
        self.sampled: list[Ids] = []
        self.trained: list[Ids] = []
        self._ends = frozenset(ends)
        self._generate = model.generate
        model.generate = self._sampling
        model.register_forward_pre_hook(self._training, with_kwargs=True)

    def _sampling(self, *arguments: Any, **named: Any) -> Any:
        """Run `generate`, and record its rows."""
        rows = unpadded(named["input_ids"], named["attention_mask"])
        output = self._generate(*arguments, **named)
        width = named["input_ids"].shape[1]
        self.prompts += rows
        self.sampled += [
            row + until_end(answer, self._ends)
            for row, answer in zip(rows, output[:, width:].tolist(), strict=True)
        ]
        return output

    def _training(self, _: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Record the rows of a forward pass; those of `generate` have no gradients."""
        if torch.is_grad_enabled():
            self.trained += unpadded(named["input_ids"], named["attention_mask"])

    def check(self, rows: int) -> None:
        """Raise RuntimeError unless so many rows were sampled, and each was trained once."""
        if len(self.prompts) != rows:
            raise RuntimeError(
                f"TRL's generate was given {len(self.prompts)} rows instead of {rows}; is it still "
                "called?"
            )
        strange = Counter(self.trained) - Counter(self.sampled)
        if len(self.trained) != rows or strange:
            example = next(iter(strange), ())
            raise RuntimeError(
                f"TRL trained {len(self.trained)} rows where {rows} were sampled, "
                f"{strange.total()} of them with other ids, such as {list(example)}: look at how "
                "it joins prompts and answers"
            )


def unpadded(ids: Any, mask: Any) -> list[Ids]:
    """Return the rows of a padded batch without their padding."""
    return [tuple(row[kept].tolist()) for row, kept in zip(ids, mask.bool(), strict=True)]


def until_end(answer: list[int], ends: Collection[int]) -> Ids:
    """Return an answer up to and with its end token."""
    stop = next((i for i, token in enumerate(answer) if token in ends), len(answer))
    return tuple(answer[: stop + 1])
