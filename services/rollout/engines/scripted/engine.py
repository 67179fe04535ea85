"""The scripted engine: a known token distribution behind the same port, without torch (DESIGN 7).

Closed forms in tests, thousands of nodes in simulations. It forgets a policy's prefixes as the real engines do, and may
take a set time for what it does, so that a run's timing can be rehearsed.
"""

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from banyan.draws import uniforms
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Floats, IntTokens, Sampling
from services.rollout.engines.port import EngineStats, Key, Request, Sampled, Tokenizer
from services.rollout.engines.scripted import latency
from services.rollout.engines.scripted.distribution import Distribution
from services.rollout.engines.scripted.latency import AT_ONCE, Latency
from services.rollout.engines.scripted.script import Script
from services.rollout.engines.scripted.tokenizer import Alphabet
from services.rollout.engines.scripted.toy_models import TOYS
from services.rollout.engines.torch_engine.samples import LEAST, Likeliest, Samples
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch, unstarted

_KNOWN = 1_000_000  # tokens remembered as computed
_DISTRIBUTIONS = 16_384  # remembered


class _Branch(RunningBranch):
    """A row with its text, cut where the prompt ends: at the last line end."""

    __slots__ = ("answer", "prompt")

    def __init__(self, request: Request, cached_tokens: int, text: str) -> None:
        super().__init__(request, cached_tokens, len(request.prefix_P))
        self.prompt, _, self.answer = text.rpartition("\n")

    def say(self, text: str) -> None:
        """Goes on by a character, or by none."""
        self.answer += text
        if text == "\n":
            self.prompt, self.answer = f"{self.prompt}\n{self.answer}".rstrip("\n"), ""


class ScriptedEngine:
    """Samples from a Script. `seconds`: what its steps have taken by its latency model, whether or not it slept."""

    def __init__(
        self,
        script: Script,
        policy: PolicyVersion,
        max_branches: int = 64,
        latency: Latency = AT_ONCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.tokenizer: Tokenizer = Alphabet()
        self.seconds = 0.0
        self._script, self._policy, self._max_branches = script, policy, max_branches
        self._latency, self._sleep = latency, sleep
        self._waiting: OrderedDict[Key, Request] = OrderedDict()
        self._rows: list[_Branch] = []
        self._held = False
        self._known: set[int] = set()
        self._distributions: dict[Hashable, Distribution] = {}
        self._sampled = self._prefilled = self._cached = self._steps = 0

    def submit(self, request: Request) -> None:
        """Queues a segment."""
        if not len(request.prefix_P) or request.sampling.max_new_tokens < 1:
            raise InvalidInput(
                "a request needs a prefix of at least one token and room for at least one new one"
            )
        if any(token >= Alphabet.size for token, _ in request.sampling.bias):
            raise InvalidInput(
                f"logit bias of tokens that the alphabet of {Alphabet.size} has not: {request.sampling.bias}"
            )
        if any(not 0 <= token < Alphabet.size for token in request.forced):
            raise InvalidInput(
                f"forced tokens {request.forced} are not all in the alphabet of {Alphabet.size}"
            )
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment."""
        if (request := self._waiting.pop(key, None)) is not None:
            return unstarted(request, self._policy)
        for row in self._rows:
            if row.request.key == key:
                self._rows.remove(row)
                return row.ended(Finish.ABORTED, self._policy)
        return None

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """A new policy step changes the accuracy; weights are not read."""
        cut = [row.ended(Finish.ABORTED, self._policy) for row in self._rows]
        self._rows.clear()
        self._known.clear()
        self._distributions.clear()
        self._policy, self._held = policy, False
        return cut

    def hold(self, held: bool) -> None:
        """Whether nothing more is admitted."""
        self._held = held

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._known.clear()

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:]; the prompt ends at the last line end before `first`."""
        each = []
        for at in range(first, len(tokens_T)):
            prompt, _, answer = self.tokenizer.decode(tokens_T[:at]).rpartition("\n")
            each.append(
                self._distribution(prompt, answer, Sampling(temperature=temperature)).tempered_V[
                    tokens_T[at]
                ]
            )
        return np.array(each, np.float32).clip(min=LEAST)

    def stats(self) -> EngineStats:
        """Counts."""
        return EngineStats(
            self._sampled,
            self._prefilled,
            self._cached,
            self._steps,
            len(self._rows),
            len(self._waiting),
        )

    @property
    def busy(self) -> bool:
        return bool(self._rows or (self._waiting and not self._held))

    def step(self) -> list[Sampled]:
        """One token for each branch, after the time that its latency model says."""
        self._steps += 1
        before = self._prefilled
        while self._waiting and not self._held and len(self._rows) < self._max_branches:
            self._admit(self._waiting.popitem(last=False)[1])
        self._pass(self._latency.step(self._prefilled - before, len(self._rows)))
        rows, drawn = self._rows, self._draw(self._rows)
        self._rows = []
        ended: list[Sampled] = []
        for r, row in enumerate(rows):
            self._take(row, drawn, r)
            finish = row.finish(self.tokenizer)
            if finish is None:
                self._rows.append(row)
            else:
                ended.append(self._ended(row, finish))
        return ended

    def _pass(self, seconds: float) -> None:
        self.seconds += seconds
        if seconds:
            self._sleep(seconds)

    # -- prefixes --

    def _admit(self, request: Request) -> None:
        known = self._remember(request.prefix_P)
        self._cached += known
        self._prefilled += len(request.prefix_P) - known
        self._rows.append(_Branch(request, known, self.tokenizer.decode(request.prefix_P)))

    def _remember(self, path_P: IntTokens) -> int:
        """Counts a path as computed; how many of its tokens were before."""
        names = _names(path_P)
        known = bisect_left(names, True, key=lambda name: name not in self._known)
        if len(self._known) + len(names) - known > _KNOWN:
            self._known.clear()
        self._known.update(names[known:])
        return known

    # -- sampling --

    def _draw(self, rows: Sequence[_Branch]) -> Samples:
        keys = np.array([row.request.draw_key for row in rows], np.uint64)
        u_R = uniforms(keys, np.array([row.position for row in rows], np.uint64)).tolist()
        each = [self._distribution(row.prompt, row.answer, row.request.sampling) for row in rows]
        tokens = [
            d.token(u) if row.forced is None else row.forced
            for row, d, u in zip(rows, each, u_R, strict=True)
        ]
        picked = list(zip(each, tokens, strict=True))
        return Samples(
            np.array(tokens, np.int32),
            np.array([d.tempered_V[token] for d, token in picked], np.float32),
            np.array([d.drawn_V[token] for d, token in picked], np.float32),
            np.array([d.entropy for d in each], np.float32),
            _likeliest(rows, each),
            self._scores(rows),
        )

    def _scores(self, rows: Sequence[_Branch]) -> Floats | None:
        """What the script's head says of each row; None where no row asks."""
        if not any(row.request.signals.head for row in rows):
            return None
        said = [self._script.score(row.prompt, row.answer, self._policy.step) for row in rows]
        return np.array([np.nan if score is None else score for score in said], np.float32)

    def _take(self, row: _Branch, drawn: Samples, r: int) -> None:
        self._sampled += row.forced is None
        self._prefilled += row.forced is not None
        row.take(drawn, r)
        row.say(self.tokenizer.decode(drawn.tokens_R[r : r + 1]))

    def _distribution(self, prompt: str, answer: str, sampling: Sampling) -> Distribution:
        of = (
            self._script.state(prompt, answer),
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.bias,
        )
        found = self._distributions.get(of)
        if found is None:
            if len(self._distributions) >= _DISTRIBUTIONS:
                self._distributions.clear()
            found = Distribution.of(
                self._script.probabilities(prompt, answer, self._policy.step), sampling
            )
            self._distributions[of] = found
        return found

    def _ended(self, row: _Branch, finish: Finish) -> Sampled:
        sampled = row.ended(finish, self._policy)
        if row.request.keep and finish is Finish.BOUNDARY:
            self._remember(np.concatenate((row.request.prefix_P, sampled.tokens_T)))
        return sampled


def _names(path_P: IntTokens) -> list[int]:
    """A number for each beginning of a path: the sum of a hash of each of its tokens and places."""
    places = np.arange(len(path_P), dtype=np.uint64)
    bits = (uniforms(path_P.astype(np.uint64), places) * 2.0**53).astype(np.uint64)
    names: list[int] = bits.cumsum(dtype=np.uint64).tolist()
    return names


def _likeliest(rows: Sequence[_Branch], each: Sequence[Distribution]) -> Likeliest | None:
    most = min(
        max(
            (max(row.request.signals.top, row.request.signals.semantic) for row in rows), default=0
        ),
        Alphabet.size,
    )
    if not most:
        return None
    ids = np.array([d.order_V[:most] for d in each], np.int32)
    logprobs = np.array([d.finite_V[d.order_V[:most]] for d in each], np.float32)
    return Likeliest(ids, logprobs, np.array([d.semantic_V[:most] for d in each], np.float32))


def build(
    settings: Mapping[str, Any],
    policy: PolicyVersion,
    max_branches: int,
    sleep: Callable[[float], None] = time.sleep,
) -> ScriptedEngine:
    """The engine of a recipe's engine_settings: those of Script and Latency, or `toy` for a chain. Raises InvalidInput."""
    rest = {name: value for name, value in settings.items() if name not in latency.NAMES}
    known = sorted(("toy", *latency.NAMES, *(f.name for f in fields(Script))))
    unknown = sorted(set(rest) - set(known))
    if unknown:
        raise InvalidInput(
            f"engine scripted has no setting {unknown[0]!r}; it has {', '.join(known)}"
        )
    if (toy := rest.pop("toy", None)) is not None:
        if toy not in TOYS or "chain" in rest:
            raise InvalidInput(
                f"engine scripted: toy must be one of {', '.join(TOYS)}, with no chain beside it; got {toy!r}"
            )
        rest["chain"] = TOYS[toy]()
    try:
        return ScriptedEngine(Script(**rest), policy, max_branches, latency.read(settings), sleep)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"engine scripted: {error}") from None
