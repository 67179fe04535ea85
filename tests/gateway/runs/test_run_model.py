"""Facts of a model on this host, in the stored run and in the specs of its trees.

The store checks nothing against facts that are missing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from banyan.digest import blake
from banyan.plugins import Allocation
from banyan.v1 import tree_pb2
from services.gateway.runs.evaluation import evaluations
from services.gateway.runs.opening import Opener
from services.gateway.runs.staleness_gate import PolicySteps
from services.gateway.tasks import dataset
from tests.cli.folders import whole_model

_WORDS = ["[UNK]", *map(str, range(40)), "+", "-", "*"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a whole model whose tokenizer has a token for each word of a sum."""
    model = Path(whole_model(tmp_path))
    config = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 64}
    (model / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(_WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))
    return model


@pytest.fixture
def recipe(recipe_of: Any, folder: Path) -> Any:
    return recipe_of(model=str(folder), resources={"engine": "torch"})


async def _opener(recipe: Any) -> Opener:
    return Opener("tiny-1", recipe, await dataset.load(recipe, Path.cwd()))


def _said(tree: tree_pb2.TreeSpec) -> tuple[int, bytes]:
    return tree.prompt_tokens, tree.prompt_digest


def _by_hand(tree: tree_pb2.TreeSpec) -> tuple[int, bytes]:
    """Return number and digest of the tokens of a tree's messages, looked up word by word."""
    words: Sequence[str] = " ".join(
        message["content"] for message in json.loads(tree.messages_json)
    ).split()
    ids = [_WORDS.index(word) for word in words]
    return len(ids), blake(np.array(ids, "<i4").tobytes())


async def test_a_training_tree_says_the_tokens_of_its_prompt(recipe: Any) -> None:
    opener = await _opener(recipe)
    trees = [
        opener.training(ordinal, Allocation(row=ordinal), PolicySteps(0))[0] for ordinal in range(5)
    ]
    assert [_said(tree) for tree in trees] == [_by_hand(tree) for tree in trees]
    assert {tree.prompt_tokens for tree in trees} == {3} and len(
        {tree.prompt_digest for tree in trees}
    ) == 5


async def test_messages_that_were_put_before_a_prompt_count(recipe: Any) -> None:
    before = ({"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"})
    (tree, *_) = (await _opener(recipe)).training(
        0, Allocation(row=0, messages=before), PolicySteps(0)
    )
    assert _said(tree) == _by_hand(tree) and tree.prompt_tokens == 7


async def test_a_tree_of_an_evaluation_says_them_too(recipe: Any) -> None:
    trees = list((await _opener(recipe)).evaluation(evaluations(recipe, "before", 0)[0]))
    assert len(trees) == 3 and [_said(tree) for tree in trees] == [_by_hand(tree) for tree in trees]


async def test_of_a_model_that_is_not_here_they_are_not_said(recipe_of: Any) -> None:
    opener = await _opener(recipe_of(model="/nowhere/on/this/host", resources={"engine": "torch"}))
    assert _said(opener.training(0, Allocation(row=0), PolicySteps(0))[0]) == (0, b"")


async def test_the_stored_run_holds_the_facts_of_its_model(
    here: Any, recipe: Any, folder: Path
) -> None:
    stored = await here.run((await here.create(recipe)).run_id)
    assert (stored.vocabulary, stored.longest_path) == (100, 64)
    assert stored.tokenizer_digest == blake((folder / "tokenizer.json").read_bytes())
    nothing = await here.run(here.run_id)  # of the scripted engine
    assert (nothing.vocabulary, nothing.longest_path, nothing.tokenizer_digest) == (0, 0, b"")
