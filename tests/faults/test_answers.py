"""The oracle reads what actions and answers say in their tokens, by the run's own tokenizer."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.observation import Effect
from banyan.environments.receipts import Receipt
from banyan.segment import Finish, Kind, Segment
from banyan.v1 import runstore_service_pb2 as rs
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from services.treestore.control import runs
from services.treestore.storage.database import Database
from tests.banyan.environments.test_observation import SEEN
from tests.faults.oracle import answers
from tests.treestore.forge import World

Encode = Callable[[str], Sequence[int]]
FRAMES = {"scripted": (" ", " "), "torch": ("<end>\nuser\n", "<end>\nassistant\n")}


def byte_level() -> Tokenizer:
    """Return a small tokenizer of bytes, with a special token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["user assistant 6*7 42"], trainer)
    return made


class Run:
    """The store of a run whose paths act."""

    def __init__(self, folder: Path, engine: str, tokenizer: bool = True) -> None:
        self.file, self.engine = folder / "s.sqlite", engine
        self.database = Database(f"sqlite:///{self.file}").open()
        self.world, tokens = World(self.database), byte_level()
        self.encode: Encode = lambda text: tokens.encode(text).ids
        if engine == "scripted":
            self.encode = lambda text: CharacterTokenizer().encode(text).tolist()
        self.database.transact(runs.take_gateway_epoch)
        run = self.world.forge.run()
        run.recipe_json = json.dumps({"resources": {"engine": engine}})
        data = tokens.to_str().encode() if tokenizer and engine == "torch" else b""
        request = rs.PutRunRequest(run=run, request_id="1", gateway_epoch=1, tokenizer=data)
        self.database.transact(lambda c: runs.put(c, request, 0, self.world.settings))
        spec = self.world.forge.spec()
        self.world.open(spec)
        self.root = self.world.forge.root(spec)
        self.world.ingest(self.world.forge.segments(self.root))
        self.paths = 0

    def path(
        self,
        call: str = "6*7",
        text: str = "42",
        *,
        says: str = "",
        told: str = "",
        cut: int | None = None,
        above: Segment | None = None,
        **seen_as: Any,
    ) -> Segment:
        """Store an action in two segments, and its answer, which is returned.

        says: the answer in its tokens, if not `text`.
        told: the action in its receipt, if not `call`.
        cut: tokens of the answer that the model had room for; None for all.
        above: what it stands behind; None for the prompt.
        seen_as: fields of its observation.
        """
        forge, head, tail = self.world.forge, *FRAMES[self.engine]
        ids = np.array(self.encode(call), np.int32)
        first = forge.child(
            above or self.root, self.paths, 1, tokens_T=ids[:1], finish=Finish.ABORTED, text=call[0]
        )
        size = len(ids) - 1
        last = forge.child(first, 0, size, tokens_T=ids[1:], finish=Finish.TOOL_CALL)
        seen = replace(SEEN, action=last.id, shown=blake(text.encode()), **seen_as)
        key = self.world.settings.receipt_key
        mac = receipts.mac(key, forge.run_id, last.tree_id, seen)
        answer = forge.child(
            last,
            tokens_T=np.array(self.encode(f"{head}{says or text}{tail}")[:cut], np.int32),
            kind=Kind.TOOL,
            logprobs_T=[],
            policy=b"",
            finish=Finish.BOUNDARY if cut is None else Finish.LENGTH,
            receipt=Receipt(seen, mac, told or call),
            text=text,
        )
        self.world.ingest(forge.segments(first, last, answer))
        self.paths += 1
        return answer

    def faults(self) -> list[str]:
        with sqlite3.connect(self.file) as db:
            db.row_factory = sqlite3.Row
            assert list(answers.answers(db)) == []
            return [*answers.words(db), *answers.states(db)]


@pytest.mark.parametrize("engine", FRAMES)
def test_tokens_say_what_texts_and_receipts_say(tmp_path: Path, engine: str) -> None:
    run = Run(tmp_path, engine)
    run.path()
    run.path("6+7", "13")
    run.path("6-7\n", "")
    run.path("6+8", "14", cut=2)
    assert run.faults() == []
    run.path("6*8", "48", told="6*7")
    [fault] = run.faults()
    assert fault.startswith("action ") and fault.endswith("something else than its receipt")
    run.path("6*9", "54", says="55")
    assert len(run.faults()) == 2 and run.faults()[1].endswith("something else than its text")
    run.path("6+9", "15", says="51", cut=20)
    assert len(run.faults()) == 3


def test_states_follow_the_paths(tmp_path: Path) -> None:
    run = Run(tmp_path, "scripted")
    one, two = blake(b"1"), blake(b"2")
    first = run.path(effect=Effect.STATE, after=one)
    second = run.path(above=first, effect=Effect.STATE, before=one, after=two)
    run.path(above=first, effect=Effect.NONE, before=one, after=one)
    assert run.faults() == []
    run.path(above=second, before=one, after=one)
    assert run.faults()[0].endswith("was given in another state than its path's")
    run.path(above=second, before=two, after=one)
    assert run.faults()[1].endswith("left another state, though its step changes none")
    run.path(before=one, after=one)
    assert len(run.faults()) == 3, "all paths of a tree begin in one state"


def test_a_run_whose_tokens_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    run = Run(tmp_path, "torch", tokenizer=False)
    run.path()
    [fault] = run.faults()
    assert fault.endswith("has no tokenizer")


def test_a_turn_first_ends_the_thoughts_that_were_left_open() -> None:
    endings = {text: answers.ending(text) for text in ("<think>a", "<think>a</think>b", "a", "")}
    assert [text for text, end in endings.items() if end] == ["<think>a"]
    assert answers.ending("<think>a</think><think>") == "</think>"
