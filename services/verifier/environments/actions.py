"""Answers to the actions of trees (docs/protocol.md, Environments).

Row, environment and what came before an action are read from the store. An action that has an
answer there keeps it. A state that is lost is made again from the path's actions; what the path
says of them must come out.
"""

import json
from dataclasses import replace
from functools import partial
from typing import Any

from banyan import registry
from banyan.digest import blake
from banyan.draws import key as draw_key
from banyan.environments import receipts
from banyan.environments.cut import cut
from banyan.environments.endings import Ending
from banyan.environments.observation import TIME_OVER, Effect
from banyan.environments.observed import MOST_ANSWER, answer_digest, observed, text_digest
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.reasons import Reason
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from banyan.wire.receipts import from_wire
from services.verifier.environments import spans
from services.verifier.environments.asked import OURS, Asked, Caller
from services.verifier.environments.effects import ExternalEffect
from services.verifier.environments.ports import Hosts, Sessions, Store
from services.verifier.environments.runner import Runner
from services.verifier.environments.states import States
from services.verifier.environments.stepping import Stepper
from services.verifier.environments.unanswerable import Places, Unanswerable, foreign

_MOST_BUILT = 256
_NO_COUNT = "its time was over, and time is no limit that a deterministic run can repeat"
_WORK_S = 5.0  # that a joined node waits for an answer, beyond its wait for the action


class Actions:
    """Answers actions; equal requests share one answer.

    store: reads the way to an action.
    key: key of receipts.
    sessions: run code of actions; None where such environments are refused.
    hosts: do steps of users' classes; None where those are refused.
    """

    def __init__(
        self,
        store: Store,
        key: bytes,
        sessions: Sessions | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self._store, self._key = store, key
        self._stepper = Stepper(Runner(sessions, hosts))
        self._states, self._places = States(), Places()
        self._built: dict[str, tuple[EnvironmentSpec, Any]] = {}
        self._asked = Asked()

    async def act(
        self,
        tree_id: bytes,
        epoch: int,
        action: bytes,
        *,
        call: str,
        deadline_s: float,
        caller: Caller = OURS,
    ) -> tuple[Receipt, str] | Ending:
        """Return the answer to an action: its receipt, and the text that the path goes on with.

        It is an ending instead if the state cannot be made again (ENVIRONMENT_DIVERGED), the
        environment itself is wrong (ENVIRONMENT_FAULT), the system failed too often
        (INFRASTRUCTURE), the episode is over (DEADLINE), or something outside may
        have been changed without an answer (EFFECT_UNKNOWN).

        call: text of the action; of runs that a node joined the store's own counts.
        caller: the joined node that asks.

        Raises NotFound or Refused if the claim is not in force or another node's, TemporaryError if
        the store lacks the action at the deadline, or a runner was lost.
        """
        answer = partial(self._answer, tree_id, epoch, action, call, deadline_s, caller)
        key = tree_id, epoch, action
        return await self._asked.answer(caller, key, answer, deadline_s + _WORK_S)

    async def _answer(
        self,
        tree_id: bytes,
        epoch: int,
        action: bytes,
        call: str,
        deadline_s: float,
        caller: Caller,
    ) -> tuple[Receipt, str] | Ending:
        way = await self._store.read_action(tree_id, epoch, action, deadline_s, caller)
        if not way.run_id:
            raise TemporaryError(
                f"action {action.hex()[:12]} of tree {tree_id.hex()[:12]} is not stored yet"
            )
        last = way.turns[-1]
        if last.HasField("receipt"):
            return from_wire(last.receipt), last.answer
        _refuse_behind_the_end(way)
        if (given := self._asked.given(tree_id, action)) is not None:
            return given
        effect = ExternalEffect(self._store, tree_id, epoch, action)
        try:
            if way.effect_begun:
                raise effect.unknown("a tool may have been called for it before")
            text = way.call if way.HasField("call") else call
            with spans.act(way, tree_id, text) as span:
                found = await self._new(way, tree_id, text, effect)
                spans.answered(span, found[0].observation, found[1])
            return self._asked.keep(tree_id, action, found)
        except Unanswerable as end:
            self._places.end(end)
            return Ending.said(
                self._key,
                way.run_id,
                tree_id,
                place=end.place,
                reason=end.reason,
                cause="" if caller.joined else str(end),  # what it quotes may be no node's to read
            )

    async def _new(
        self, way: ts.ActionWay, tree_id: bytes, call: str, effect: ExternalEffect
    ) -> tuple[Receipt, str]:
        """Return the answer to an action that the store has none of. Raises Unanswerable."""
        action = way.turns[-1].action
        self._places.check(turn.action for turn in way.turns)
        spec, environment = self._environment(way, tree_id)
        if len(way.turns) > spec.turns:
            raise Refused(
                f"action {action.hex()[:12]} is the {len(way.turns)}th of its path, which may have"
                f" {spec.turns} (environment.turns)"
            )
        if 0 < 1000 * spec.episode_s < way.episode_ms:
            message = (
                f"its tree's episode is over after {spec.episode_s:g} s (environment.episode_s)"
            )
            raise Unanswerable(action, Reason.DEADLINE, message)
        try:
            before = await self._state(environment, way)
            with effect.watched():
                answer = await self._stepper.step(environment, before, call, action, effect)
            if spec.deterministic and answer.outcome in TIME_OVER:
                raise Unanswerable(action, Reason.DEADLINE, _NO_COUNT)
        except TemporaryError as error:
            self._places.count(action, error)
            raise
        text = cut(answer.text[:MOST_ANSWER], spec.answer_chars)
        whole = observed(environment, spec.settings, action, before, answer)
        observation = replace(whole, shown=text_digest(text))
        self._states.put(action, answer.state)
        mac = receipts.mac(self._key, way.run_id, tree_id, observation)
        receipt = Receipt(observation, mac, call)
        await effect.end(receipt, text)
        return receipt, text

    def _environment(self, way: ts.ActionWay, tree_id: bytes) -> tuple[EnvironmentSpec, Any]:
        """Return the environment of a tree; made once for all trees that are grown alike."""
        if (made := self._built.get(way.generate_json)) is not None:
            return made
        spec = GenerateSpec.from_json(way.generate_json).environment
        if spec is None:
            raise InvalidInput(f"tree {tree_id.hex()[:12]} has no environment that answers")
        if len(self._built) >= _MOST_BUILT:
            self._built.pop(next(iter(self._built)))
        made = spec, registry.environment(spec.name, spec.settings, spec.hosting)
        self._built[way.generate_json] = made
        return made

    async def _state(self, environment: Any, way: ts.ActionWay) -> bytes:
        """Return the state that an action finds, made again from the nearest one that is kept."""
        turns = way.turns[:-1]
        first, state = 0, b""
        for number in range(len(turns), 0, -1):
            if (kept := self._states.get(turns[number - 1].action)) is not None:
                first, state = number, kept
                break
        else:
            with foreign(environment.name, way.turns[-1].action):
                state = _reset(environment, way)
        for turn in turns[first:]:
            with spans.replay(way, turn.action):
                state = await self._again(environment, state, turn)
            self._states.put(turn.action, state)
        return state

    async def _again(self, environment: Any, state: bytes, turn: ts.Turn) -> bytes:
        """Return the state behind an action that was answered before.

        Raises Unanswerable with ENVIRONMENT_DIVERGED unless what is recorded comes out.
        """
        seen = from_wire(turn.receipt).observation
        if seen.before != blake(state):
            raise _diverged(turn, "found")
        if seen.effect is not Effect.STATE:
            return state  # it is not run again: its answer stands
        answer = await self._stepper.step(environment, state, turn.receipt.call, turn.action)
        if blake(answer.state) != seen.after:
            raise _diverged(turn, "left")
        if answer_digest(answer) != seen.answer:
            raise _diverged(turn, "answered")
        return answer.state


def _reset(environment: Any, way: ts.ActionWay) -> bytes:
    row: dict[str, Any] = json.loads(way.row_json)
    state: bytes = environment.reset(row, draw_key(way.seed, "environment"))
    return state


def _refuse_behind_the_end(way: ts.ActionWay) -> None:
    """Raise Refused for an action behind an answer that ended the episode, as no node asks it."""
    for turn in way.turns[:-1]:
        if turn.receipt.observation.done:
            raise Refused(
                f"action {way.turns[-1].action.hex()[:12]} stands behind {turn.action.hex()[:12]},"
                " whose answer ended the episode"
            )


def _diverged(turn: ts.Turn, what: str) -> Unanswerable:
    message = f"it {what} something else when its path was made again"
    return Unanswerable(turn.action, Reason.ENVIRONMENT_DIVERGED, message)
