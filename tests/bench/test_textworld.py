"""The small model of the textworld recipe reads in training what the engine will have it read."""

from typing import Any

import numpy as np
import pytest

from banyan.environments.renderers import OURS
from bench.textworld import warm_start, words
from services.rollout.engines.torch_engine.loading import ChatTokenizer

PROMPT = "Find the coin and take it. Spare room. Exits: east, north."
TURNS = [
    ("go east .", "You can't. Spare room. Exits: north."),
    ("take coin .", "You take the coin."),
]
TEXTS = [PROMPT, *(text for turn in TURNS for text in turn)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("words")
    model: Any = warm_start.model_of(words.save(folder, TEXTS))
    return ChatTokenizer(folder, model)


def test_a_path_has_the_tokens_that_the_engine_gives_it(tokenizer: ChatTokenizer) -> None:
    """Prompt, commands and answers as a run joins them; the end of the last turn is never read."""
    renderer = tokenizer.renderer(OURS)
    parts = [renderer.render([{"role": "user", "content": PROMPT}])]
    for action, answer in TURNS:
        said = tokenizer.encode(action).tolist()
        parts += [said, renderer.bridge(parts[0], said, answer)]
    ids, labels = warm_start.encoded(tokenizer._inner, {"prompt": PROMPT, "turns": TURNS})
    joined = np.concatenate(parts).tolist()
    assert joined[: len(ids)] == ids and tokenizer.decode(np.array(joined[len(ids) :])) == (
        "assistant"
    )
    learned = [token for token in labels if token >= 0]
    assert learned == [t for action, _ in TURNS for t in tokenizer.encode(action)]


def test_special_tokens_in_an_answer_are_unknown_words(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode(f"You {words.END} can't go").tolist()
    assert tokenizer._inner.eos_token_id not in ids and ids.count(0) >= 1


def test_an_action_ends_with_its_mark(tokenizer: ChatTokenizer) -> None:
    tokens = tokenizer.encode("go east .")
    assert len(tokens) == 3 and tokenizer.decode(tokens[-1:]) == "."
