"""An engine for tests of policies that force tokens and want signals: next characters by a function of the answer so far."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from banyan.draws import uniforms
from banyan.segment import Finish
from banyan.signals import Signals
from services.rollout.engines.alphabet import END, Alphabet
from services.rollout.engines.port import Policy, Request, Sampled

Next = Callable[[str], Mapping[str, float]]


class FakeEngine:
    """One token a step for each branch. `following("")` is of the first character; "" as a character is the end."""

    def __init__(self, following: Next, max_branches: int = 64) -> None:
        self.tokenizer, self.following, self.max_branches = Alphabet(), following, max_branches
        self.policy = Policy(1, 0, b"p")
        self.rows: dict[object, tuple[Request, list[int], list[np.ndarray]]] = {}
        self.waiting: list[Request] = []
        self.sampled = 0

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def submit(self, request: Request) -> None:
        assert request.sampling.max_new_tokens >= 1 and len(request.prefix_P)
        self.waiting.append(request)

    def load(self, policy: Policy, weights: object) -> list[Sampled]:
        cut = [self._ended(key, Finish.ABORTED) for key in list(self.rows)]
        self.policy = policy
        return cut

    def step(self) -> list[Sampled]:
        while self.waiting and len(self.rows) < self.max_branches:
            request = self.waiting.pop(0)
            self.rows[request.key] = (request, [], [])
        finishes = [(key, self._draw(*row)) for key, row in self.rows.items()]
        return [self._ended(key, finish) for key, finish in finishes if finish is not None]

    def _p(self, request: Request, tokens: list[int]) -> np.ndarray:
        text = self.tokenizer.decode(np.array([*request.prefix_P, *tokens])).rpartition("\n")[2]
        p = np.zeros(self.tokenizer.size)
        for character, mass in self.following(text).items():
            p[self.tokenizer.encode(character)[0] if character else END] += mass
        return p

    def _draw(self, request: Request, tokens: list[int], seen: list[np.ndarray]) -> Finish | None:
        p, sampled = self._p(request, tokens), len(tokens) - len(request.forced)
        seen.append(p)
        if sampled < 0:
            tokens.append(request.forced[len(tokens)])
            return self._draw(request, tokens, seen)
        self.sampled += 1
        if request.sampling.temperature == 0:
            tokens.append(int(p.argmax()))
        else:
            u = uniforms(np.array([request.draw_key], np.uint64), np.array([sampled], np.uint64))[0]
            q = p ** (1 / request.sampling.temperature)
            tokens.append(int(np.searchsorted(q.cumsum(), u * q.sum(), side="right")))
        if tokens[-1] == END:
            return Finish.STOP
        return Finish.BOUNDARY if sampled + 1 >= request.sampling.max_new_tokens else None

    def _ended(self, key: object, finish: Finish) -> Sampled:
        request, tokens, seen = self.rows.pop(key)
        n, top = len(tokens), request.signals.top
        with np.errstate(divide="ignore"):
            logs = np.log(np.array(seen).reshape(n, -1))
        order = np.argsort(-logs, axis=1, kind="stable")[:, :top]
        signals = Signals(order, np.take_along_axis(logs, order, 1)) if top and n else Signals()
        own = np.array([logs[i, t] for i, t in enumerate(tokens)], np.float32)
        return replace(
            Sampled(key, np.array(tokens, np.int32), own, finish, self.policy, signals=signals),
            entropies_T=-np.sum(np.exp(logs) * np.maximum(logs, -99), axis=1).astype(np.float32),
        )


def chained(chain: Mapping[str, Mapping[str, float]]) -> Next:
    """The next character by the longest suffix of the answer that `chain` knows."""

    def following(answer: str) -> Mapping[str, float]:
        return next(chain[answer[i:]] for i in range(len(answer) + 1) if answer[i:] in chain)

    return following
