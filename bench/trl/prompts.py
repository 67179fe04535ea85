"""Token ids that both models are given, compared row by row: other ids would be another job."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from banyan.recipe import Recipe
from banyan.segment import Kind

Ids = Sequence[int]
_TRAIN = 1  # trees.purpose


def digest(prompts: Sequence[Ids]) -> str:
    """Return the digest of prompts in order."""
    return hashlib.blake2b(
        json.dumps([list(ids) for ids in prompts]).encode(), digest_size=16
    ).hexdigest()


def encoded(recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Return the ids of rows' messages by our engine's tokenizer."""
    import torch

    from services.chassis import models
    from services.rollout.engines.torch_engine import loading

    folder = models.resolve(recipe.model, tokenizer=True)
    tokenizer = loading.ChatTokenizer(
        folder, loading.load_model(folder, torch.bfloat16, torch.device("cpu"))
    )
    return [tokenizer.encode_chat(row["prompt"]).tolist() for row in rows]


def stored(database: Path, run_id: str) -> list[list[int]]:
    """Return the ids that a run's engine was given, from its store, by number of the group."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        rows = db.execute(
            "select t.group_id, s.tokens from trees t join segments s on s.tree_id = t.tree_id "
            "where t.run_id = ? and t.purpose = ? and s.kind = ?",
            (run_id, _TRAIN, int(Kind.PROMPT)),
        ).fetchall()
    numbered = sorted((int(group.rpartition("/")[2]), tokens) for group, tokens in rows)
    return [np.frombuffer(tokens, "<i4").tolist() for _, tokens in numbered]


def by_group(rows: Sequence[Ids], width: int, side: str) -> list[Ids]:
    """Return one prompt for each `width` rows. Raises RuntimeError if those of a group differ.

    side: whose rows they are
    """
    for number in range(0, len(rows), width):
        if len({tuple(row) for row in rows[number : number + width]}) > 1:
            raise RuntimeError(
                f"{side}'s rows {number} to {number + width - 1} are one group and have several "
                "prompts"
            )
    return list(rows[::width])


def compare(actual: Sequence[Ids], wanted: Sequence[Ids], side: str) -> None:
    """Raise RuntimeError unless a model was given the expected prompts, row by row.

    who: name of the model's side
    """
    if len(actual) != len(wanted):
        raise RuntimeError(
            f"{side}'s model was given {len(actual)} prompts, and {len(wanted)} are compared"
        )
    for number, (his, own) in enumerate(zip(actual, wanted, strict=True)):
        if list(his) != list(own):
            raise RuntimeError(
                f"prompt {number}: {side}'s model was given {list(his)}, and our tokenizer makes "
                f"{list(own)} of it; look at the chat template, at BOS and at the order of rows: "
                "seconds of different jobs say nothing"
            )
