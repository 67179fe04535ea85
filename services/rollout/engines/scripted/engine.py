"""The scripted engine: a known token distribution behind the engine port, without torch.

It gives tests closed forms, and simulations thousands of nodes. It drops a policy's prefixes as the
real engines do, and may take a set time for its steps, so that a run's timing can be rehearsed.
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
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from services.rollout.engines.scripted.toy_models import TOYS
from services.rollout.engines.torch_engine.samples import LEAST, Samples, TopTokens
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch, unstarted

_MAX_CACHED = 1_000_000  # tokens remembered as prefilled
_MAX_DISTRIBUTIONS = 16_384  # distributions remembered


class _Branch(RunningBranch):
    """A branch with its text, cut where the prompt ends: at the last line end."""

    __slots__ = ("answer", "prompt")

    def __init__(self, request: Request, cached_tokens: int, text: str) -> None:
        super().__init__(request, cached_tokens, len(request.prefix_P))
        self.prompt, _, self.answer = text.rpartition("\n")

    def append_text(self, text: str) -> None:
        """Append a character, or none, to the answer; a line end makes the answer prompt."""
        self.answer += text
        if text == "\n":
            self.prompt, self.answer = f"{self.prompt}\n{self.answer}".rstrip("\n"), ""


class ScriptedEngine:
    """Engine that samples from a Script.

    seconds: duration of its steps by its latency model, whether or not it slept.
    """

    def __init__(
        self,
        script: Script,
        policy: PolicyVersion,
        max_branches: int = 64,
        latency: Latency = AT_ONCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.tokenizer: Tokenizer = CharacterTokenizer()
        self.seconds = 0.0
        self._script, self._policy, self._max_branches = script, policy, max_branches
        self._latency, self._sleep = latency, sleep
        self._waiting: OrderedDict[Key, Request] = OrderedDict()
        self._branches: list[_Branch] = []
        self._on_hold = False
        self._cached_prefixes: set[int] = set()
        self._distributions: dict[Hashable, Distribution] = {}
        self._sampled = self._prefilled = self._cached = self._steps = 0

    # -- the port --

    def submit(self, request: Request) -> None:
        """Queue a segment. Raise InvalidInput if it could never run."""
        if not len(request.prefix_P) or request.sampling.max_new_tokens < 1:
            raise InvalidInput(
                "a request needs a prefix of at least one token and room for at least one new one"
            )
        size = CharacterTokenizer.size
        if any(token >= size for token, _ in request.sampling.bias):
            raise InvalidInput(
                f"logit bias of tokens that the alphabet of {size} has not: {request.sampling.bias}"
            )
        if any(not 0 <= token < size for token in request.forced):
            raise InvalidInput(
                f"forced tokens {request.forced} are not all in the alphabet of {size}"
            )
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stop a segment and return it; None if it is not here."""
        if (request := self._waiting.pop(key, None)) is not None:
            return unstarted(request, self._policy)
        for branch in self._branches:
            if branch.request.key == key:
                self._branches.remove(branch)
                return branch.ended(Finish.ABORTED, self._policy)
        return None

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Change the policy step, and with it the accuracy; weights are not read."""
        aborted = [branch.ended(Finish.ABORTED, self._policy) for branch in self._branches]
        self._branches.clear()
        self._cached_prefixes.clear()
        self._distributions.clear()
        self._policy, self._on_hold = policy, False
        return aborted

    def hold(self, on: bool) -> None:
        """Stop or resume admission."""
        self._on_hold = on

    def forget(self) -> None:
        """Drop all cached prefixes."""
        self._cached_prefixes.clear()

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Return log-probs of tokens[first:]; the prompt ends at the last line end before each."""
        sampling = Sampling(temperature=temperature)
        logprobs = []
        for at in range(first, len(tokens_T)):
            prompt, _, answer = self.tokenizer.decode(tokens_T[:at]).rpartition("\n")
            distribution = self._distribution(prompt, answer, sampling)
            logprobs.append(distribution.tempered_V[tokens_T[at]])
        return np.array(logprobs, np.float32).clip(min=LEAST)

    def stats(self) -> EngineStats:
        """Return the counts."""
        return EngineStats(
            sampled_tokens=self._sampled,
            prefilled_tokens=self._prefilled,
            cached_tokens=self._cached,
            steps=self._steps,
            running=len(self._branches),
            waiting=len(self._waiting),
        )

    @property
    def busy(self) -> bool:
        return bool(self._branches or (self._waiting and not self._on_hold))

    def step(self) -> list[Sampled]:
        """Sample one token for each branch, after the duration of the latency model."""
        self._steps += 1
        before = self._prefilled
        while self._waiting and not self._on_hold and len(self._branches) < self._max_branches:
            self._admit(self._waiting.popitem(last=False)[1])
        self._spend(self._latency.step(self._prefilled - before, len(self._branches)))
        branches, samples = self._branches, self._draw(self._branches)
        self._branches = []
        ended: list[Sampled] = []
        for r, branch in enumerate(branches):
            self._append(branch, samples, r)
            finish = branch.finish(self.tokenizer)
            if finish is None:
                self._branches.append(branch)
            else:
                ended.append(self._end(branch, finish))
        return ended

    def _spend(self, seconds: float) -> None:
        self.seconds += seconds
        if seconds:
            self._sleep(seconds)

    # -- prefixes --

    def _admit(self, request: Request) -> None:
        cached = self._cache(request.prefix_P)
        self._cached += cached
        self._prefilled += len(request.prefix_P) - cached
        text = self.tokenizer.decode(request.prefix_P)
        self._branches.append(_Branch(request, cached, text))

    def _cache(self, path_P: IntTokens) -> int:
        """Remember a path as prefilled, and return how many of its tokens were already."""
        keys = _prefix_keys(path_P)
        cached = bisect_left(keys, True, key=lambda name: name not in self._cached_prefixes)
        if len(self._cached_prefixes) + len(keys) - cached > _MAX_CACHED:
            self._cached_prefixes.clear()
        self._cached_prefixes.update(keys[cached:])
        return cached

    # -- sampling --

    def _draw(self, branches: Sequence[_Branch]) -> Samples:
        keys = np.array([branch.request.draw_key for branch in branches], np.uint64)
        positions = np.array([branch.position for branch in branches], np.uint64)
        distributions = [
            self._distribution(branch.prompt, branch.answer, branch.request.sampling)
            for branch in branches
        ]
        tokens = [
            distribution.token(u) if branch.forced is None else branch.forced
            for branch, distribution, u in zip(
                branches, distributions, uniforms(keys, positions).tolist(), strict=True
            )
        ]
        picked = list(zip(distributions, tokens, strict=True))
        return Samples(
            tokens_R=np.array(tokens, np.int32),
            logprobs_R=np.array([d.tempered_V[token] for d, token in picked], np.float32),
            sampled_logprobs_R=np.array([d.sampled_V[token] for d, token in picked], np.float32),
            entropies_R=np.array([d.entropy for d in distributions], np.float32),
            top_tokens=_top_tokens(branches, distributions),
            head_R=self._head_scores(branches),
        )

    def _head_scores(self, branches: Sequence[_Branch]) -> Floats | None:
        """Return the script's head score of each branch; None where no branch requests one."""
        if not any(branch.request.signals.head for branch in branches):
            return None
        step = self._policy.step
        scores = [self._script.score(branch.prompt, branch.answer, step) for branch in branches]
        return np.array([np.nan if score is None else score for score in scores], np.float32)

    def _append(self, branch: _Branch, samples: Samples, r: int) -> None:
        self._sampled += branch.forced is None
        self._prefilled += branch.forced is not None
        branch.append(samples, r)
        branch.append_text(self.tokenizer.decode(samples.tokens_R[r : r + 1]))

    def _distribution(self, prompt: str, answer: str, sampling: Sampling) -> Distribution:
        key = (
            self._script.state(prompt, answer),
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.bias,
        )
        distribution = self._distributions.get(key)
        if distribution is None:
            if len(self._distributions) >= _MAX_DISTRIBUTIONS:
                self._distributions.clear()
            p_V = self._script.probabilities(prompt, answer, self._policy.step)
            distribution = Distribution.of(p_V, sampling)
            self._distributions[key] = distribution
        return distribution

    def _end(self, branch: _Branch, finish: Finish) -> Sampled:
        sampled = branch.ended(finish, self._policy)
        kept = branch.request.keep and finish is Finish.BOUNDARY
        if kept or branch.request.forks_inside:
            self._cache(np.concatenate((branch.request.prefix_P, sampled.tokens_T)))
        return sampled


def _prefix_keys(path_P: IntTokens) -> list[int]:
    """Return a key for each beginning of a path: the sum of hashes of its tokens and places."""
    places = np.arange(len(path_P), dtype=np.uint64)
    hashes = (uniforms(path_P.astype(np.uint64), places) * 2.0**53).astype(np.uint64)
    keys: list[int] = hashes.cumsum(dtype=np.uint64).tolist()
    return keys


def _top_tokens(
    branches: Sequence[_Branch], distributions: Sequence[Distribution]
) -> TopTokens | None:
    wanted = [branch.request.signals for branch in branches]
    requested = max((max(w.top, w.semantic) for w in wanted), default=0)
    width = min(requested, CharacterTokenizer.size)
    if not width:
        return None
    return TopTokens(
        ids_R_K=np.array([d.order_V[:width] for d in distributions], np.int32),
        logprobs_R_K=np.array([d.finite_V[d.order_V[:width]] for d in distributions], np.float32),
        semantic_R_K=np.array([d.semantic_V[:width] for d in distributions], np.float32),
    )


def build(
    settings: Mapping[str, Any],
    policy: PolicyVersion,
    max_branches: int,
    sleep: Callable[[float], None] = time.sleep,
) -> ScriptedEngine:
    """Build the engine of a recipe's engine_settings. Raise InvalidInput for unknown or bad ones.

    They are the fields of Script and Latency, or `toy` for a chain.
    """
    script_settings = {n: value for n, value in settings.items() if n not in latency.NAMES}
    known = sorted(("toy", *latency.NAMES, *(f.name for f in fields(Script))))
    unknown = sorted(set(script_settings) - set(known))
    if unknown:
        raise InvalidInput(
            f"engine scripted has no setting {unknown[0]!r}; it has {', '.join(known)}"
        )
    if (toy := script_settings.pop("toy", None)) is not None:
        if toy not in TOYS or "chain" in script_settings:
            raise InvalidInput(
                f"engine scripted: toy must be one of {', '.join(TOYS)}, with no chain beside it;"
                f" got {toy!r}"
            )
        script_settings["chain"] = TOYS[toy]()
    try:
        script = Script(**script_settings)
        return ScriptedEngine(script, policy, max_branches, latency.read(settings), sleep)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"engine scripted: {error}") from None
