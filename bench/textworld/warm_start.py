"""A small Llama that plays as badly as the paths that it learns from:
`python -m bench.textworld.warm_start FOLDER` reads FOLDER/paths.jsonl and writes FOLDER/model.

It learns the player's commands alone, so that it knows the words and what may be said, and no way.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from bench.textworld import words

EPOCHS, BATCH, RATE = 4, 8, 2e-3
RISING = 20  # steps up to the rate, from which it falls
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_IGNORED = -100


def model_of(tokenizer: Any) -> Any:
    """Return a new model, the same each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    model: Any = LlamaForCausalLM
    return model(
        LlamaConfig(vocab_size=len(tokenizer), eos_token_id=end, bos_token_id=None, **SHAPE)
    )


def encoded(tokenizer: Any, path: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the token ids of a path, and those that are learned: its commands."""
    ids: list[int] = []
    labels: list[int] = []
    for message in words.conversation(path["prompt"], path["turns"]):
        head = tokenizer(f"{words.START}{message['role']}")["input_ids"]
        text = tokenizer(message["content"])["input_ids"]
        tail = tokenizer(words.END)["input_ids"]
        learned = text if message["role"] == "assistant" else [_IGNORED] * len(text)
        ids += [*head, *text, *tail]
        labels += [*[_IGNORED] * len(head), *learned, *[_IGNORED] * len(tail)]
    return ids, labels


def batch_of(paths: Sequence[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels, padded behind."""
    longest = max(len(ids) for ids, _ in paths)
    ids_B_T = torch.zeros(len(paths), longest, dtype=torch.long)
    labels_B_T = torch.full_like(ids_B_T, _IGNORED)
    for row, (ids, labels) in enumerate(paths):
        ids_B_T[row, : len(ids)] = torch.tensor(ids)
        labels_B_T[row, : len(ids)] = torch.tensor(labels)
    return ids_B_T, labels_B_T


def learn(model: Any, paths: Sequence[tuple[list[int], list[int]]]) -> float:
    """Train on the paths; return the last epoch's mean loss of a token."""
    steps = EPOCHS * (len(paths) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / RISING) * (1 - step / steps)
    )
    losses: list[float] = []
    for _ in range(EPOCHS):
        order, losses = torch.randperm(len(paths)).tolist(), []
        for first in range(0, len(order) - BATCH + 1, BATCH):
            ids_B_T, labels_B_T = batch_of([paths[i] for i in order[first : first + BATCH]])
            logits = model(input_ids=ids_B_T).logits[:, :-1].flatten(0, 1)
            loss = functional.cross_entropy(logits, labels_B_T[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def main() -> None:
    """Write the model and its tokenizer."""
    torch.set_num_threads(1)  # sums in one order
    folder = Path(sys.argv[1])
    paths = [json.loads(line) for line in (folder / "paths.jsonl").open()]
    rows = [json.loads(line) for line in (folder / "rows.jsonl").open()]
    texts = [text for p in paths for pair in p["turns"] for text in pair]
    texts += [p["prompt"] for p in (*paths, *rows)] + ["You can't."]
    tokenizer = words.save(folder / "model", texts)
    model = model_of(tokenizer)
    loss = learn(model, [encoded(tokenizer, path) for path in paths])
    model.save_pretrained(folder / "model")
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{size:,} weights, {len(tokenizer)} words, loss {loss:.3f}")


if __name__ == "__main__":
    main()
