"""The scripted engine: a known token distribution behind the same port, without torch (DESIGN 7).

Closed forms in tests, thousands of nodes in simulations. It forgets a policy's prefixes as the real engines do, and may
take a set time per step, so that a run's timing can be rehearsed.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.draws import uniforms
from banyan.errors import InvalidInput
from banyan.segment import Finish, Floats, IntTokens, Sampling
from services.rollout.engines.alphabet import Alphabet
from services.rollout.engines.port import EngineStats, Key, Policy, Request, Sampled, Tokenizer, no_floats
from services.rollout.engines.script import Script

_KNOWN = 4096  # prefixes remembered as computed


@dataclass(eq=False, slots=True)
class _Row:
    request: Request
    cached_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)


class ScriptedEngine:
    """Samples from a Script."""

    def __init__(self, script: Script, policy: Policy, max_branches: int = 64, latency_s: float = 0.0) -> None:
        self.tokenizer: Tokenizer = Alphabet()
        self._script, self._policy, self._max_branches, self._latency_s = script, policy, max_branches, latency_s
        self._waiting: OrderedDict[Key, Request] = OrderedDict()
        self._rows: list[_Row] = []
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._sampled = self._prefilled = self._cached = self._steps = 0

    def submit(self, request: Request) -> None:
        """Queues a segment."""
        if not len(request.prefix_P) or request.sampling.max_new_tokens < 1:
            raise InvalidInput("a request needs a prefix of at least one token and room for at least one new one")
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment."""
        if (request := self._waiting.pop(key, None)) is not None:
            return self._ended(_Row(request, 0), Finish.ABORTED)
        for row in self._rows:
            if row.request.key == key:
                self._rows.remove(row)
                return self._ended(row, Finish.ABORTED)
        return None

    def load(self, policy: Policy, weights: Path | None) -> list[Sampled]:
        """A new policy step changes the accuracy; weights are not read."""
        cut = [self._ended(row, Finish.ABORTED) for row in self._rows]
        self._rows.clear()
        self._known.clear()
        self._policy = policy
        return cut

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._known.clear()

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:]; the prompt ends at the last line end before `first`."""
        sampling = Sampling(temperature=temperature)
        each = [self._distribution(tokens_T[:at], sampling)[0][tokens_T[at]] for at in range(first, len(tokens_T))]
        return np.array(each, np.float32)

    def stats(self) -> EngineStats:
        """Counts."""
        return EngineStats(self._sampled, self._prefilled, self._cached, self._steps, len(self._rows), len(self._waiting))

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    def step(self) -> list[Sampled]:
        """One token for each branch, after `latency_s` seconds."""
        self._steps += 1
        time.sleep(self._latency_s)
        while self._waiting and len(self._rows) < self._max_branches:
            self._admit(self._waiting.popitem(last=False)[1])
        ended = [(row, finish) for row in self._rows if (finish := self._draw(row)) is not None]
        gone = {id(row) for row, _ in ended}
        self._rows = [row for row in self._rows if id(row) not in gone]
        return [self._ended(row, finish) for row, finish in ended]

    def _admit(self, request: Request) -> None:
        known = len(request.prefix_P) if request.prefix_P.tobytes() in self._known else 0
        self._cached += known
        self._prefilled += len(request.prefix_P) - known
        self._remember(request.prefix_P)
        self._rows.append(_Row(request, known))

    def _remember(self, path: IntTokens) -> None:
        self._known[path.tobytes()] = None
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def _draw(self, row: _Row) -> Finish | None:
        """Samples one token of a branch; why it has ended, if it has."""
        sampling = row.request.sampling
        path = np.concatenate((row.request.prefix_P, np.array(row.tokens, np.int32)))
        logprobs, drawn_from, entropy = self._distribution(path, sampling)
        u = uniforms(np.array([row.request.draw_key], np.uint64), np.array([len(row.tokens)], np.uint64))[0]
        cdf = np.exp(drawn_from).cumsum()
        token = int(np.searchsorted(cdf, u * cdf[-1], side="right"))
        row.tokens.append(token)
        row.logprobs.append(float(logprobs[token]))
        row.entropies.append(entropy)
        if sampling.truncated:
            row.sampled.append(float(drawn_from[token]))
        self._sampled += 1
        if token in self.tokenizer.eos or self._said_stop(row):
            return Finish.STOP
        return Finish.BOUNDARY if len(row.tokens) >= sampling.max_new_tokens else None

    def _said_stop(self, row: _Row) -> bool:
        stops = row.request.sampling.stop
        return bool(stops) and any(s in self.tokenizer.decode(np.array(row.tokens, np.int32)) for s in stops)

    def _distribution(
        self, path_T: IntTokens, sampling: Sampling
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
        """Log-probs at temperature T, those of the distribution drawn from, and the untempered entropy."""
        prompt, _, answer = self.tokenizer.decode(path_T).rpartition("\n")
        p = self._script.probabilities(prompt, answer, self._policy.step)
        with np.errstate(divide="ignore"):
            log_p = np.log(p)
        entropy = -float(np.sum(p[p > 0] * log_p[p > 0]))
        tempered = log_p / (sampling.temperature or 1.0)
        tempered = tempered - np.logaddexp.reduce(tempered)
        if sampling.temperature == 0.0:
            return tempered, np.where(np.arange(len(p)) == p.argmax(), 0.0, -np.inf), entropy
        return tempered, _truncated(tempered, sampling), entropy

    def _ended(self, row: _Row, finish: Finish) -> Sampled:
        tokens = np.array(row.tokens, np.int32)
        if row.request.keep and finish is Finish.BOUNDARY:
            self._remember(np.concatenate((row.request.prefix_P, tokens)))
        arrays = (np.array(x, np.float32) if x else no_floats() for x in (row.logprobs, row.sampled, row.entropies))
        logprobs, sampled, entropies = arrays
        return Sampled(row.request.key, tokens, logprobs, finish, self._policy, sampled, entropies, row.cached_tokens)


def _truncated(log_p: npt.NDArray[np.float64], sampling: Sampling) -> npt.NDArray[np.float64]:
    if not sampling.truncated:
        return log_p
    order = np.argsort(-log_p, kind="stable")
    mass = np.exp(log_p[order])
    keep = np.ones(len(order), bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    before = (mass * keep).cumsum() - mass * keep
    keep &= before < sampling.top_p * (mass * keep).sum()
    keep[0] = True
    out = np.full(len(log_p), -np.inf)
    out[order[keep]] = log_p[order[keep]]
    return np.asarray(out - np.logaddexp.reduce(out))


def build(settings: Mapping[str, Any], policy: Policy, max_branches: int) -> ScriptedEngine:
    """The engine of a recipe's engine_settings: those of Script, and latency_s. Raises InvalidInput."""
    rest = dict(settings)
    latency_s = rest.pop("latency_s", 0.0)
    known = {f.name for f in fields(Script)}
    unknown = sorted(set(rest) - known)
    if unknown:
        raise InvalidInput(f"engine scripted has no setting {unknown[0]!r}; it has latency_s, {', '.join(sorted(known))}")
    if not isinstance(latency_s, (int, float)) or latency_s < 0:
        raise InvalidInput(f"engine scripted: latency_s must be seconds of at least 0, got {latency_s!r}")
    try:
        return ScriptedEngine(Script(**rest), policy, max_branches, float(latency_s))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"engine scripted: {error}") from None
