"""Examples of a warm start: packed sequences have the loss and gradients of flat ones, and tokens
that are context have none."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.segment import Kind
from banyan.view import TreeView
from services.learner.packing import packing
from services.learner.sft import batches, examples
from services.learner.sft.examples import Example
from tests.learner.conftest import Forest
from tests.learner.flat_reference import Grads, packed
from tests.learner.mixed_batches import exact

Flat = tuple[list[int], list[bool]]  # tokens of a path, and whether each is trained
CHAT: Flat = (
    # prompt, a call, the tool's answer, the final turn
    [1, 2, 3, 4, 9, 8, 7, 20, 21, 22, 5, 6, 2],
    [False] * 4 + [True] * 3 + [False] * 3 + [True] * 3,
)


def row(flat: Flat, name: str = "row") -> Example:
    tokens, trained = flat
    return examples.of_row(name, name.encode(), np.array(tokens, np.int32), np.array(trained))


def random_row(rng: np.random.Generator) -> Flat:
    """Return a row of several turns; the first tokens are those of other rows."""
    size = int(rng.integers(4, 20))
    return [1, 2, *rng.integers(0, 6, size).tolist()], [False] * 2 + (
        rng.random(size) < 0.5
    ).tolist()


def flat_loss(model: Any, rows: Sequence[Flat]) -> tuple[float, Grads]:
    """Return the mean −log π of the trained tokens and its gradients, by the plain model."""
    model.set_attn_implementation("sdpa")
    losses = []
    for tokens, trained in rows:
        ids = torch.tensor(tokens)
        logp_T_V = model(ids[None]).logits[0, :-1].log_softmax(-1)
        own = -logp_T_V[torch.arange(len(ids) - 1), ids[1:]]
        losses.append(own[torch.tensor(trained[1:], dtype=torch.bool)])
    model.zero_grad(set_to_none=True)
    loss = torch.cat(losses).mean()
    loss.backward()
    return float(loss.detach()), {n: p.grad.clone() for n, p in model.named_parameters()}


def packed_loss(model: Any, found: Sequence[Example], budget: int = 64) -> tuple[float, Grads]:
    return packed(model, packing.pack(examples.parts_of(found), budget), "reinforce", {})


def same(first: tuple[float, Grads], second: tuple[float, Grads]) -> bool:
    """Compare losses and gradients, of models whose norms are exact."""
    worst = max(float((g - second[1][n]).abs().max()) for n, g in first[1].items())
    return worst < 1e-9 and abs(first[0] - second[0]) < 1e-10


def test_only_turns_of_the_assistant_are_trained() -> None:
    (part,) = row(CHAT).parts
    (path,) = part.paths
    assert path.token_T.tolist() == [9, 8, 7, 5, 6, 2]
    assert path.predictor_T.tolist() == [3, 4, 5, 9, 10, 11]


def test_the_first_token_of_a_row_is_never_trained() -> None:
    (part,) = row(([5, 6], [True, True])).parts
    assert part.paths[0].token_T.tolist() == [6]


@pytest.mark.parametrize("seed", range(4))
def test_packed_rows_of_several_turns_are_flat_rows(
    tiny_llama: Callable[..., Any], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [CHAT, *(random_row(rng) for _ in range(6))]
    found = [row(flat, str(i)) for i, flat in enumerate(rows)]
    assert len(packing.pack(examples.parts_of(found), 64)) > 1
    assert same(
        packed_loss(exact(tiny_llama(seed)), found), flat_loss(exact(tiny_llama(seed)), rows)
    )


def test_a_loss_on_the_tools_tokens_would_be_noticed(tiny_llama: Callable[..., Any]) -> None:
    tokens, trained = CHAT
    leaking = [flag or 20 <= token <= 22 for token, flag in zip(tokens, trained, strict=True)]
    assert not same(
        packed_loss(exact(tiny_llama()), [row(CHAT)]),
        flat_loss(exact(tiny_llama()), [(tokens, leaking)]),
    )


def paths_of(view: TreeView, leaves: Sequence[int]) -> list[Flat]:
    """Return the paths of leaves from the tree's segments alone."""
    found = []
    for leaf in leaves:
        end = view.leaves_L[leaf]
        pieces = view.tree.pieces(end.segment, end.end)
        tokens = [int(t) for segment, stop in pieces for t in segment.tokens_T[:stop]]
        trained = [s.kind is Kind.POLICY for s, stop in pieces for _ in range(stop)]
        found.append((tokens, trained))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [0, 16, 256])
def test_packed_paths_of_trees_are_flat_paths(
    tiny_llama: Callable[..., Any], seed: int, budget: int
) -> None:
    """Trees with tools inside, sampled at another temperature, some paths chosen."""
    rng = np.random.default_rng(seed)
    views = [Forest(temperature=0.5).random(rng, segments=9) for _ in range(3)]
    chosen = [list(range(0, len(view.leaves_L), 2)) for view in views]
    found = [
        examples.of_tree(f"tree {i}", b"", view, leaves, budget)
        for i, (view, leaves) in enumerate(zip(views, chosen, strict=True))
    ]
    flat = [path for v, leaves in zip(views, chosen, strict=True) for path in paths_of(v, leaves)]
    assert same(
        packed_loss(exact(tiny_llama(seed)), found, budget),
        flat_loss(exact(tiny_llama(seed)), flat),
    )


def test_shared_tokens_are_computed_once(forest: Forest) -> None:
    view = forest.two_level([1.0, 1.0, 0.0, 1.0])
    example = examples.of_tree("tree", b"", view, [0, 1, 3], 64)
    assert sum(map(len, example.parts)) == 3 + 2 + 1 + 1 + 2 + 1
    assert examples.trained_tokens(example.parts) == 3 * 3


def test_a_row_beyond_the_models_context_is_named(forest: Forest) -> None:
    found = [row(CHAT, "rows.jsonl line 1"), row(([1] * 20, [True] * 20), "rows.jsonl line 2")]
    with pytest.raises(InvalidInput, match=r"rows.jsonl line 2 has 20 tokens, .* holds 19"):
        examples.refuse_long(found, 19)
    examples.refuse_long(found, 20)
    examples.refuse_long(found, 0)


def test_rows_of_one_prompt_stay_on_one_side() -> None:
    found = [row(([1, 2, n], [False, True, True]), str(n // 3)) for n in range(30)]
    train, held = batches.split(found, 0.2)
    assert len(held) == 6 and len(train) == 24
    assert not {e.key for e in train} & {e.key for e in held}
    assert batches.split(found, 0.0) == (found, [])
    assert batches.split(found[:3], 0.5) == (found[:3], [])
    assert len(batches.split(found[:6], 0.01)[1]) == 3


def test_an_epoch_takes_every_part_once_in_an_order_of_its_own() -> None:
    parts = examples.parts_of(row(([1, 2, n], [False, True, True])) for n in range(10))
    planned = batches.batches(parts, 9, seed=3, epochs=2, steps=None)
    first, second = planned[: len(planned) // 2], planned[len(planned) // 2 :]
    ids = [[id(part) for batch in epoch for part in batch] for epoch in (first, second)]
    assert sorted(ids[0]) == sorted(ids[1]) == sorted(map(id, parts)) and ids[0] != ids[1]
    assert [len(batch) for batch in first] == [3, 3, 3, 1]
    again = batches.batches(parts, 9, seed=3, epochs=1, steps=6)
    assert [list(map(id, b)) for b in again] == [list(map(id, b)) for b in planned[:6]]
