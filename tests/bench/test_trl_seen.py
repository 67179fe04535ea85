"""Ids that both sides of the comparison get: recorded at the model, and refused if they differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
import torch

from banyan.segment import Kind
from bench.trl import prompts
from bench.trl.seen import Seen
from services.treestore.storage import schema

PAD, END = 0, 9


class Toy(torch.nn.Module):
    """Model that answers 5 5, or 5 and an end token for odd prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.weight * input_ids * attention_mask

    def generate(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        with torch.no_grad():
            self(input_ids=input_ids, attention_mask=attention_mask)
        last = input_ids[:, -1:] % 2
        return torch.cat(
            [
                input_ids,
                torch.full_like(last, 5),
                torch.where(last == 1, END, 5),
                torch.full_like(last, 5),
            ],
            1,
        )


GIVEN = [[PAD, 3, 4], [1, 2, 3]]


def sampled() -> tuple[Toy, Seen]:
    toy = Toy()
    observed = Seen(toy, [END])
    ids = torch.tensor(GIVEN)
    toy.generate(input_ids=ids, attention_mask=(ids != PAD).long())
    return toy, observed


def train(toy: Toy, rows: list[list[int]]) -> None:
    ids = torch.tensor(rows)
    toy(input_ids=ids, attention_mask=(ids != PAD).long()).sum().backward()


def test_prompts_are_those_that_generate_was_given_without_padding() -> None:
    _, observed = sampled()
    assert observed.prompts == [(3, 4), (1, 2, 3)]
    assert observed.sampled == [(3, 4, 5, 5, 5), (1, 2, 3, 5, END)] and observed.trained == []


def test_rows_that_are_trained_must_be_those_that_were_sampled_in_any_order() -> None:
    toy, observed = sampled()
    train(toy, [[1, 2, 3, 5, END, PAD]])
    train(toy, [[PAD, 3, 4, 5, 5, 5]])
    observed.check(2)


@pytest.mark.parametrize(
    "rows",
    [
        [[PAD, 3, 4, 5, 5, 5]],
        [[PAD, 3, 4, 5, 5, 5], [PAD, 3, 4, 5, 5, 5]],
        [[PAD, 3, 4, 5, 5, 5], [8, 2, 3, 5, END, PAD]],
    ],
    ids=["one too few", "one twice", "another beginning"],
)
def test_other_rows_are_refused(rows: list[list[int]]) -> None:
    toy, observed = sampled()
    train(toy, rows)
    with pytest.raises(RuntimeError, match="TRL trained"):
        observed.check(2)


def test_a_generate_that_is_not_called_any_more_is_noticed() -> None:
    _, observed = sampled()
    with pytest.raises(RuntimeError, match="was given 2 rows instead of 64"):
        observed.check(64)


def test_a_prompt_that_differs_is_named_with_both_sides() -> None:
    prompts.compare([[1, 2], [3]], [[1, 2], [3]], "TRL")
    with pytest.raises(
        RuntimeError,
        match=r"prompt 1: TRL's model was given \[7, 3\], and our tokenizer makes \[3\]",
    ):
        prompts.compare([[1, 2], [7, 3]], [[1, 2], [3]], "TRL")
    with pytest.raises(RuntimeError, match="was given 1 prompts, and 2 are compared"):
        prompts.compare([[1, 2]], [[1, 2], [3]], "TRL")
    assert prompts.digest([[1, 2], [3]]) != prompts.digest([[1], [2, 3]])


def test_the_rows_of_a_group_have_one_prompt() -> None:
    assert prompts.by_group([[1], [1], [2], [2]], 2, "TRL") == [[1], [2]]
    with pytest.raises(RuntimeError, match="rows 2 to 3 are one group"):
        prompts.by_group([[1], [1], [2], [3]], 2, "TRL")


def test_what_our_engine_was_given_is_read_from_the_store_in_order_of_groups(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.sqlite"
    engine = sa.create_engine(f"sqlite:///{path}")
    schema.metadata.create_all(engine)
    with engine.begin() as db:
        for number, purpose in ((10, 1), (9, 1), (0, 2)):
            tree, ids = bytes([number]) * 32, np.array([number, 70000], "<i4").tobytes()
            kept = {
                "tree_id": tree,
                "run_id": "r",
                "group_id": f"r/train/{number}",
                "purpose": purpose,
            }
            db.execute(schema.trees.insert().values(_empty(schema.trees) | kept))
            for kind in (Kind.PROMPT, Kind.POLICY):
                item = {
                    "id": tree + bytes([kind]),
                    "tree_id": tree,
                    "kind": int(kind),
                    "ordinal": int(kind),
                    "tokens": ids,
                }
                db.execute(schema.segments.insert().values(_empty(schema.segments) | item))
    assert prompts.stored(path, "r") == [[9, 70000], [10, 70000]]
    assert prompts.stored(path, "another") == []


def _empty(table: sa.Table) -> dict[str, bytes]:
    """Return empty values for the columns of bytes that must hold something."""
    return {c.name: b"" for c in table.c if not (c.nullable or c.primary_key or c.default)}
