"""An environment with a state, and a store of the paths on which it acts."""

import json
from dataclasses import dataclass, field
from typing import Any

from banyan.environments import receipts
from banyan.environments.endings import Ending
from banyan.environments.observation import Effect
from banyan.environments.receipts import Receipt
from banyan.plugins.environment import Answer
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from banyan.wire.receipts import to_wire
from services.verifier.environments.actions import Actions
from services.verifier.environments.asked import Caller

TREE, RUN, KEY = b"t" * 32, "run", receipts.key_of("secret")


@dataclass
class Adder:
    """An environment with a state: the sum of what was said, with the row's start."""

    name: str = "adder"
    version: str = "1"
    end: str = "."
    steps: list[str] = field(default_factory=list)
    drift: int = 0

    def reset(self, row: Any, seed: int) -> bytes:
        return str(row["start"]).encode()

    def step(self, state: bytes, action: str) -> Answer:
        self.steps.append(action)
        total = int(state) + int(action) + self.drift
        return Answer(f"sum {total}", str(total).encode(), effect=Effect.STATE)


@dataclass
class Store:
    """The recorded path of each action."""

    environment: str = f"{__name__}:Adder"
    answer_chars: int = 2000
    episode_s: float = 0.0
    episode_ms: int = 0
    deterministic: bool = False
    parents: dict[bytes, bytes] = field(default_factory=dict)
    answers: dict[bytes, tuple[Receipt, str]] = field(default_factory=dict)
    reads: int = 0

    def add(self, action: bytes, parent: bytes = b"") -> bytes:
        self.parents[action] = parent
        return action

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float, caller: Caller
    ) -> ts.ActionWay:
        self.reads += 1
        if action not in self.parents:
            return ts.ActionWay()
        path, at = [], action
        while at:
            path.append(at)
            at = self.parents[at]
        spec = EnvironmentSpec(
            name=self.environment,
            answer_chars=self.answer_chars,
            episode_s=self.episode_s,
            turns=64,
            deterministic=self.deterministic,
        )
        generate = GenerateSpec(name="iid", max_new_tokens=8, environment=spec)
        return ts.ActionWay(
            run_id=RUN,
            row_json=json.dumps({"start": 5}),
            generate_json=generate.to_json(),
            turns=[self._turn(one) for one in reversed(path)],
            episode_ms=self.episode_ms,
        )

    def _turn(self, action: bytes) -> ts.Turn:
        if action not in self.answers:
            return ts.Turn(action=action)
        receipt, text = self.answers[action]
        return ts.Turn(action=action, receipt=to_wire(receipt), answer=text)


async def acted(actions: Actions, store: Store, action: bytes, call: str) -> tuple[Receipt, str]:
    """Answer an action and record the answer, as a node does."""
    found = await actions.act(TREE, 1, action, call=call, deadline_s=1.0)
    assert not isinstance(found, Ending)
    store.answers[action] = found
    return found


async def ended(actions: Actions, action: bytes, call: str) -> Ending:
    """Return the word that an action gets no answer."""
    found = await actions.act(TREE, 1, action, call=call, deadline_s=1.0)
    assert isinstance(found, Ending)
    return found
