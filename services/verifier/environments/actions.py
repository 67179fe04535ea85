"""Answers to the actions of trees (docs/protocol.md, Environments).

Row, environment and what came before an action are read from the store. An action that has an
answer there keeps it. A state that is lost is made again from the path's actions; what the path
says of them must come out.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

from banyan import registry
from banyan.digest import blake, canonical
from banyan.draws import key as draw_key
from banyan.environments import receipts
from banyan.environments.observation import Effect
from banyan.environments.observed import MOST_ANSWER, answer_digest, observed, text_digest
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.plugins.environment import Answer
from banyan.reasons import Reason
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from banyan.wire.receipts import from_wire
from services.verifier.environments.cut import cut
from services.verifier.environments.ports import Sessions, Store
from services.verifier.environments.states import States

_MOST_STATE = 64 << 10
_MOST_BUILT = 256


class Actions:
    """Answers actions; equal requests share one answer.

    store: reads the way to an action.
    key: key of receipts.
    sessions: run code of actions; None where such environments are refused.
    """

    def __init__(self, store: Store, key: bytes, sessions: Sessions | None = None) -> None:
        self._store, self._key, self._sessions = store, key, sessions
        self._states = States()
        self._built: dict[bytes, Any] = {}
        self._under_way: dict[bytes, asyncio.Task[tuple[Receipt, str]]] = {}

    async def act(
        self, tree_id: bytes, epoch: int, action: bytes, *, call: str, deadline_s: float
    ) -> tuple[Receipt, str]:
        """Return the answer to an action: its receipt, and the text that the path goes on with.

        call: text of the action.

        Raises NotFound or Refused if the claim is not in force, Refused with ENVIRONMENT_DIVERGED
        if the state cannot be made again, TemporaryError if the store lacks the action at the
        deadline.
        """
        task = self._under_way.get(action)
        if task is None:
            task = asyncio.create_task(self._answer(tree_id, epoch, action, call, deadline_s))
            self._under_way[action] = task
            task.add_done_callback(lambda _: self._under_way.pop(action, None))
        return await asyncio.shield(task)

    async def _answer(
        self, tree_id: bytes, epoch: int, action: bytes, call: str, deadline_s: float
    ) -> tuple[Receipt, str]:
        way = await self._store.read_action(tree_id, epoch, action, deadline_s)
        if not way.run_id:
            raise TemporaryError(
                f"action {action.hex()[:12]} of tree {tree_id.hex()[:12]} is not stored yet"
            )
        last = way.turns[-1]
        if last.HasField("receipt"):
            return from_wire(last.receipt), last.answer
        spec = self._spec(way, tree_id)
        environment = self._environment(spec)
        before = await self._state(environment, way)
        answer = await self._step(environment, before, call)
        self._check(answer, spec)
        text = cut(answer.text[:MOST_ANSWER], spec.answer_chars)
        whole = observed(environment, spec.settings, action, before, answer)
        observation = replace(whole, shown=text_digest(text))
        self._states.put(action, answer.state)
        mac = receipts.mac(self._key, way.run_id, tree_id, observation)
        return Receipt(observation, mac, call), text

    def _spec(self, way: ts.ReadActionResponse, tree_id: bytes) -> EnvironmentSpec:
        spec = GenerateSpec.from_json(way.generate_json).environment
        if spec is None:
            raise InvalidInput(f"tree {tree_id.hex()[:12]} has no environment that answers")
        return spec

    def _environment(self, spec: EnvironmentSpec) -> Any:
        key = canonical([spec.name, dict(spec.settings)])
        if key not in self._built:
            if len(self._built) >= _MOST_BUILT:
                self._built.pop(next(iter(self._built)))
            self._built[key] = registry.environment(spec.name, spec.settings)
        return self._built[key]

    async def _step(self, environment: Any, state: bytes, call: str) -> Answer:
        """Return an environment's answer.

        Raises TemporaryError where a run in a session failed by no fault of its code.
        """
        if not hasattr(environment, "turn"):
            answer: Answer = environment.step(state, call)
            return answer
        if self._sessions is None:
            raise InvalidInput(f"environment {environment.name} needs sessions; there are none")
        turn, result = environment.turn(state, call), None
        while True:
            try:
                task = turn.send(result)
            except StopIteration as end:
                answer = end.value
                return answer
            result = await self._sessions.do(task)
            if not result.outcome.is_programs:
                raise TemporaryError(
                    f"a session of environment {environment.name} ended {result.outcome}",
                    reason=Reason.CHILD_DIED,
                )

    async def _state(self, environment: Any, way: ts.ReadActionResponse) -> bytes:
        """Return the state that an action finds, made again from the nearest one that is kept."""
        turns = way.turns[:-1]
        first, state = 0, b""
        for number in range(len(turns), 0, -1):
            if (kept := self._states.get(turns[number - 1].action)) is not None:
                first, state = number, kept
                break
        else:
            state = _reset(environment, way)
        for turn in turns[first:]:
            state = await self._again(environment, state, turn)
            self._states.put(turn.action, state)
        return state

    async def _again(self, environment: Any, state: bytes, turn: ts.Turn) -> bytes:
        """Return the state behind an action that was answered before.

        Raises Refused with ENVIRONMENT_DIVERGED unless what is recorded comes out.
        """
        seen = from_wire(turn.receipt).observation
        if seen.before != blake(state):
            raise _diverged(turn, "found")
        if seen.effect is Effect.NONE:
            return state  # it is not run again: its answer stands
        answer = await self._step(environment, state, turn.receipt.call)
        if blake(answer.state) != seen.after:
            raise _diverged(turn, "left")
        if answer_digest(answer) != seen.answer:
            raise _diverged(turn, "answered")
        return answer.state

    def _check(self, answer: Answer, spec: EnvironmentSpec) -> None:
        if len(answer.state) > _MOST_STATE:
            raise InvalidInput(
                f"environment {spec.name} left a state of {len(answer.state)} bytes; at most "
                f"{_MOST_STATE} are kept"
            )


def _reset(environment: Any, way: ts.ReadActionResponse) -> bytes:
    row: dict[str, Any] = json.loads(way.row_json)
    state: bytes = environment.reset(row, draw_key(way.seed, "environment"))
    return state


def _diverged(turn: ts.Turn, what: str) -> Refused:
    return Refused(
        f"action {turn.action.hex()[:12]} {what} something else when its path was made again",
        Reason.ENVIRONMENT_DIVERGED,
    )
